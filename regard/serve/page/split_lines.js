/** The lines of a text; the service translates each for itself. */

const ENDS = /[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/; // as the service has them

/** Those with something in them. @param {string} text */
export function splitLines(text) {
  return text
    .split(ENDS)
    .map((line) => line.trim())
    .filter(Boolean);
}
