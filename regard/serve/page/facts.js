/** What is known of a model, in a few words. */

/** How large it is; nothing where nobody knows. @param {number | null | undefined} parameters */
export function size(parameters) {
  if (!parameters) return "";
  const count = parameters < 1e5 ? parameters.toLocaleString("en") : `${(parameters / 1e6).toFixed(1)} million`;
  return `${count} parameters`;
}

/** A score: those that are at most 1 differ behind the point. @param {number} value */
export const score = (value) => value.toFixed(Math.abs(value) <= 1 ? 3 : 1);
