/** Writes the documentation from the service's own description. */

import { description } from "./api.js";
import { byId, make } from "./dom.js";
import { ErrorBanner } from "./error_banner.js";
import { kind, resolveSchema, sample } from "./openapi_schema.js";
import { table } from "./data_table.js";

/**
 * @typedef {import("./openapi_schema.js").Schema} Schema
 * @typedef {{name: string, kind: string, required: boolean, text: string}} Field
 * @typedef {{method: string, path: string, operation: Schema}} Route
 */

const JSON_KIND = "application/json";
const LINE = " \\\n"; // goes on in the next line, says a shell

const notice = new ErrorBanner(byId("notice"));

/** Asks for the description and writes it out. */
async function start() {
  notice.clear();
  try {
    show(await description());
  } catch (error) {
    notice.show(error, start);
  }
}

/** @param {Schema} description */
function show(description) {
  byId("intro").textContent = `${description.info.title} ${description.info.version}. ${description.info.description}`;
  for (const [tag, routes] of tagged(description)) {
    const links = routes.map((route) => make("li", {}, make("a", { href: `#${anchor(route)}` }, route.path)));
    byId("contents").append(make("p", {}, tag), make("ul", {}, ...links));
    byId("routes").append(make("h2", {}, tag), ...routes.map((route) => section(route, description)));
  }
  byId("routes").append(make("h2", {}, "When the answer is no"), refusals(description));
  const wanted = document.getElementById(location.hash.slice(1));
  wanted?.scrollIntoView();
}

/** The routes by what they belong to. @param {Schema} description @returns {Map<string, Route[]>} */
function tagged(description) {
  const found = new Map();
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(/** @type {Schema} */ (methods))) {
      const tag = operation.tags?.[0] ?? "other";
      found.set(tag, [...(found.get(tag) ?? []), { method: method.toUpperCase(), path, operation }]);
    }
  }
  return found;
}

/** @param {Route} route */
const anchor = ({ method, path }) => `${method.toLowerCase()}${path.replace(/\W+/g, "-")}`;

/** @param {Route} route @param {Schema} description */
function section(route, description) {
  const { method, path, operation } = route;
  const fields = [...parameters(operation, description), ...body(operation, description)];
  const answer = operation.responses?.["200"]?.content?.[JSON_KIND]?.schema;
  const shape = answer && Object.keys(answer).length ? JSON.stringify(sample(answer, description), null, 2) : "";
  return make(
    "section",
    { class: "route", id: anchor(route) },
    make("h3", {}, make("span", { class: "method" }, method), path),
    make("p", {}, operation.description ?? operation.summary ?? ""),
    ...(fields.length ? [make("h4", {}, "Takes"), listed(fields)] : []),
    make("h4", {}, "Example"),
    block(curl(route, description), `Example of ${method} ${path}`),
    ...(shape ? [make("h4", {}, "Answers"), block(shape, `Answer of ${method} ${path}`)] : []),
  );
}

/** Lines of code, which scroll by themselves. @param {string} text @param {string} label */
function block(text, label) {
  return make("pre", { tabindex: 0, role: "region", "aria-label": label }, make("code", {}, text));
}

/** @param {Schema} operation @param {Schema} description @returns {Field[]} */
function parameters(operation, description) {
  return (operation.parameters ?? []).map((/** @type {Schema} */ one) => ({
    name: one.name,
    kind: kind(one.schema ?? {}, description),
    required: Boolean(one.required),
    text: [one.description, `in the ${one.in === "path" ? "path" : "query"}`].filter(Boolean).join("; "),
  }));
}

/** What a request is made of. @param {Schema} operation @param {Schema} description @returns {Schema | undefined} */
function asked(operation, description) {
  const content = operation.requestBody?.content ?? {};
  const schema = (content[JSON_KIND] ?? content["multipart/form-data"])?.schema;
  return schema && resolveSchema(schema, description);
}

/** @param {Schema} operation @param {Schema} description @returns {Field[]} */
function body(operation, description) {
  const schema = asked(operation, description);
  return Object.entries(schema?.properties ?? {}).map(([name, one]) => {
    const otherwise = one.default !== undefined && one.default !== "" && one.default !== null;
    const fallback = otherwise ? `Otherwise ${JSON.stringify(one.default)}.` : "";
    const required = schema?.required?.includes(name) ?? false;
    return {
      name,
      kind: kind(one, description),
      required,
      text: [one.description, fallback].filter(Boolean).join(" "),
    };
  });
}

/** @param {Field[]} fields */
function listed(fields) {
  const rows = fields.map(({ name, kind, required, text }) =>
    make(
      "div",
      {},
      make("dt", {}, make("code", {}, name)),
      make("dd", { class: "kind" }, `${kind}${required ? ", needed" : ""}`),
      make("dd", {}, text),
    ),
  );
  return make("dl", { class: "fields" }, ...rows);
}

/** How to ask from a shell. @param {Route} route @param {Schema} description */
function curl({ method, path, operation }, description) {
  const address = new URL(path.slice(1), document.baseURI).href.replaceAll("%7B", "{").replaceAll("%7D", "}");
  const schema = asked(operation, description);
  if (!schema) return `curl ${method === "GET" ? "" : `-X ${method} `}${quoted(address)}`;
  const names = schema.required ?? Object.keys(schema.properties ?? {}).slice(0, 1);
  const values = Object.fromEntries(
    names.map((/** @type {string} */ name) => [name, sample(schema.properties[name], description)]),
  );
  if (operation.requestBody.content[JSON_KIND]) {
    const parts = [
      `curl ${quoted(address)}`,
      "  -H 'Content-Type: application/json'",
      `  -d ${quoted(JSON.stringify(values))}`,
    ];
    return parts.join(LINE);
  }
  const isFile = (/** @type {string} */ name) => kind(schema.properties[name], description) === "file";
  const form = names.map(
    (/** @type {string} */ name) => `  -F ${quoted(`${name}=${isFile(name) ? "@text.txt" : values[name]}`)}`,
  );
  return [`curl ${quoted(address)}`, ...form].join(LINE);
}

/** For a shell; only where it must be. @param {string} text */
function quoted(text) {
  return /^[\w:/.-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** What may go wrong is the same for all routes. @param {Schema} description */
function refusals(description) {
  const found = new Map();
  for (const methods of Object.values(description.paths)) {
    for (const operation of Object.values(/** @type {Schema} */ (methods))) {
      for (const [status, { description: text }] of Object.entries(operation.responses ?? {})) {
        if (Number(status) >= 400 && !found.has(status)) found.set(status, text);
      }
    }
  }
  const said = make(
    "p",
    {},
    "Every such answer is a JSON object with one sentence in it: ",
    make("code", {}, '{"error": "…"}'),
  );
  return make("section", { class: "route" }, said, table("Statuses", ["Status", "Meaning"], [...found].sort()));
}

start();
