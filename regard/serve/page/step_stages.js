/** One step of decoding as a row of stages, in the model's own order. */

import { drawWeightBars } from "./weight_bars.js";
import { make } from "./dom.js";
import { drawVectorStrip } from "./vector_strip.js";
import { explainSymbols, symbolName, drawSymbol } from "./math_symbols.js";
import { drawFraction } from "./data_table.js";

const NEXT = "y_t";

/**
 * @typedef {import("./api.js").Trace} Trace
 * @typedef {{trace: Trace, number: number, source: string, target: string}} Here with the languages
 * @typedef {(here: Here) => Node | null} Picture
 */

/** The number of a step that is drawn. @param {Here} here */
const step = ({ trace, number }) => trace.steps[number];

/** @param {number[] | null | undefined} numbers @param {string} name */
const vector = (numbers, name) => (numbers?.length ? drawVectorStrip(numbers, name) : null);

/** What is drawn of each symbol that has numbers to draw. @type {Record<string, Picture>} */
const PICTURES = {
  "h_{t-1}": ({ trace, number }) =>
    number
      ? vector(trace.steps[number - 1].state, symbolName("h_{t-1}"))
      : make("p", { class: "hint" }, "Made from what the encoder read."),
  h_t: (here) => vector(step(here).state, symbolName("h_t")),
  h̃_t: (here) => vector(step(here).attentional, symbolName("h̃_t")),
  c_t: (here) => vector(step(here).context, symbolName("c_t")),
  a_t: weights,
};

/** @param {Here} here */
function weights(here) {
  const { weights, window } = step(here);
  const drawn = drawWeightBars(here.trace.source, weights ?? [], window, here.source);
  const place =
    window && make("p", { class: "hint" }, `It attends to a window: positions ${window[0] + 1} to ${window[1] + 1}.`);
  return make("div", {}, drawn, ...(place ? [place] : []));
}

/**
 * All that can be drawn, the next token last.
 * @param {Here} here
 */
export function drawStages(here) {
  const row = here.trace.order.flatMap((name) => {
    const picture = PICTURES[name]?.(here);
    return picture ? [stage(name, picture)] : [];
  });
  return make(
    "ol",
    { class: "stages", "aria-label": "One step, in the model’s own order" },
    ...row,
    stage(NEXT, candidates(here)),
  );
}

/** What they, and those that cannot be drawn, mean. @param {Trace} trace */
export const explainStages = ({ order }) => explainSymbols([...order, NEXT]);

/** @param {string} name @param {Node} picture */
function stage(name, picture) {
  const head = make(
    "p",
    { class: "stage-head" },
    drawSymbol(name),
    " ",
    make("span", { class: "stage-name" }, symbolName(name)),
  );
  return make("li", { class: "stage", "data-stage": name }, head, picture);
}

/** The tokens that might come. @param {Here} here */
function candidates(here) {
  const { candidates, token } = step(here);
  const rows = candidates.map((one) => {
    const chosen = one.token === token;
    return make(
      "tr",
      { class: chosen ? "chosen" : null },
      make("th", { scope: "row", dir: "auto", lang: here.target || null }, one.token, ...(chosen ? [make("span", { class: "unseen" }, " (written)")] : [])),
      drawFraction(one.probability, `${(100 * one.probability).toFixed(1)} %`),
    );
  });
  return make(
    "table",
    { class: "candidates" },
    make("caption", { class: "unseen" }, "Likeliest tokens"),
    make("tbody", {}, ...rows),
  );
}
