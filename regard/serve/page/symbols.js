/** The papers' symbols, set as the papers set them. */

import { make } from "./dom.js";

/** What each is called in words. @type {Record<string, string>} */
const NAMES = {
  "h_{t-1}": "state before",
  h_t: "state",
  h̃_t: "attentional state",
  q_t: "query",
  a_t: "weights",
  c_t: "context",
  c: "whole source",
  y_t: "next token",
};

/** The name of a symbol; a symbol that nobody knows is its own. @param {string} symbol */
export const named = (symbol) => NAMES[symbol] ?? symbol;

/**
 * A symbol such as h_{t-1}, its index lowered.
 * @param {string} symbol
 */
export function symbol(symbol) {
  const [letter, index] = symbol.split("_", 2);
  const lowered = index?.replace(/[{}]/g, "").replace("-", "−");
  return make("span", { class: "symbol" }, make("i", {}, letter), ...(lowered ? [make("sub", {}, lowered)] : []));
}
