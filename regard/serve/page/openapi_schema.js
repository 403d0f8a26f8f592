/** Reads the schemas of an OpenAPI description: the type of a field, and the schema of a response. */

/**
 * @typedef {Record<string, any>} Schema
 */

/**
 * The schema behind a reference.
 * @param {Schema} schema
 * @param {Schema} description the whole
 * @returns {Schema}
 */
export function resolveSchema(schema, description) {
  if (!schema.$ref) return schema;
  const path = schema.$ref.replace(/^#\//, "").split("/");
  return resolveSchema(
    path.reduce((/** @type {Schema} */ part, name) => part[name], description),
    description,
  );
}

/**
 * What kind of value a schema allows, in a few words.
 * @param {Schema} given
 * @param {Schema} description
 * @returns {string}
 */
export function kind(given, description) {
  const schema = resolveSchema(given, description);
  if (schema.anyOf) return schema.anyOf.map((/** @type {Schema} */ one) => kind(one, description)).join(" or ");
  if (schema.format === "binary" || schema.contentMediaType) return "file";
  if (schema.type === "array") return `list of ${kind(schema.items ?? schema.prefixItems?.[0] ?? {}, description)}`;
  return (
    {
      string: "text",
      integer: "whole number",
      number: "number",
      boolean: "true or false",
      null: "null",
      object: "object",
    }[schema.type] ?? "anything"
  );
}

/**
 * A value that a schema allows, to show its shape.
 * @param {Schema} given
 * @param {Schema} description
 * @returns {any}
 */
export function sample(given, description) {
  const schema = resolveSchema(given, description);
  if (schema.examples?.length) return schema.examples[0];
  if (schema.default !== undefined && schema.default !== null && schema.default !== "") return schema.default;
  if (schema.anyOf) return sample(schema.anyOf[0], description);
  if (schema.prefixItems) return schema.prefixItems.map((/** @type {Schema} */ one) => sample(one, description));
  if (schema.type === "array") return [sample(schema.items ?? {}, description)];
  if (schema.properties) return fields(schema.properties, description);
  if (schema.additionalProperties) return { "…": sample(schema.additionalProperties, description) };
  return { string: "…", integer: 1, number: 0.5, boolean: true, null: null, object: {} }[schema.type] ?? "…";
}

/** @param {Record<string, Schema>} properties @param {Schema} description */
function fields(properties, description) {
  return Object.fromEntries(Object.entries(properties).map(([name, one]) => [name, sample(one, description)]));
}
