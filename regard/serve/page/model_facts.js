/** What is known of a model, in a few words. */

/** How large it is; nothing where nobody knows. @param {number | null | undefined} parameters */
export function formatSize(parameters) {
  if (!parameters) return "";
  const count = parameters < 1e5 ? parameters.toLocaleString("en") : `${(parameters / 1e6).toFixed(1)} million`;
  return `${count} parameters`;
}

/** @type {Record<string, string>} */
const NAMES = { bleu: "BLEU", chrf: "chrF" };

/** A score's name as it is written. @param {string} measure */
export const scoreName = (measure) => NAMES[measure] ?? measure;

/**
 * The score that chose the best checkpoint, with its name; nothing where there is none.
 * @param {Record<string, number | null>} scores
 */
export function bestScore(scores) {
  const [measure, value] =
    Object.entries(scores).find(([each, value]) => !["loss", "perplexity"].includes(each) && value !== null) ?? [];
  return measure ? `${scoreName(measure)} ${score(Number(value))}` : "";
}

/** A score: those that are at most 1 differ behind the point. @param {number} value */
export const score = (value) => value.toFixed(Math.abs(value) <= 1 ? 3 : 1);
