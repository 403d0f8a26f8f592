/** The papers' symbols, set as the papers set them, and what they stand for. */

import { make } from "./dom.js";

/** What each is called, and what it is. @type {Record<string, [name: string, meaning: string]>} */
const SYMBOLS = {
  "h_{t-1}": [
    "state before",
    "what the model remembers of the sentence so far; at the first step, of the whole source",
  ],
  q_t: ["query", "what the model asks of the source now"],
  a_t: ["weights", "how much it attends to each token of the source, in per cent"],
  c_t: ["context", "what it finds there: the tokens of the source, mixed by the weights"],
  c: ["whole source", "the source as one vector, the same at every step"],
  h_t: ["state", "what it remembers after this step"],
  h̃_t: ["attentional state", "made of state and context; the next token is chosen by it"],
  y_t: ["next token", "the likeliest tokens and their probabilities"],
};

/** The name of a symbol; a symbol that nobody knows is its own. @param {string} symbol */
export const symbolName = (symbol) => SYMBOLS[symbol]?.[0] ?? symbol;

/**
 * A symbol such as h_{t-1}, its index lowered.
 * @param {string} symbol
 */
export function drawSymbol(symbol) {
  const [letter, index] = symbol.split("_", 2);
  const lowered = index?.replace(/[{}]/g, "").replace("-", "−");
  return make("span", { class: "symbol" }, make("i", {}, letter), ...(lowered ? [make("sub", {}, lowered)] : []));
}

/**
 * What some symbols mean, in the order in which a step computes them.
 * @param {string[]} order
 */
export function explainSymbols(order) {
  const rows = order.map((name) =>
    make(
      "div",
      {},
      make("dt", {}, drawSymbol(name), ` ${symbolName(name)}`),
      make("dd", {}, SYMBOLS[name]?.[1] ?? "a part of this model"),
    ),
  );
  return make(
    "details",
    { class: "symbols" },
    make("summary", {}, "What the symbols mean"),
    make("p", { class: "hint" }, "In each step, t, the model computes one after the other:"),
    make("dl", {}, ...rows),
  );
}
