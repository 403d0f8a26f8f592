/** One step of decoding as a row of stages, in the model's own order. */

import { bars } from "./bars.js";
import { make } from "./dom.js";
import { strip } from "./strip.js";
import { named, symbol } from "./symbols.js";
import { share } from "./table.js";

/**
 * @typedef {import("./api.js").Trace} Trace
 * @typedef {{trace: Trace, number: number}} Here
 * @typedef {(here: Here) => Node | string} Picture
 */

/** The number of a step that is drawn. @param {Here} here */
const step = ({ trace, number }) => trace.steps[number];

/** @param {number[] | null | undefined} numbers @param {string} name @param {string} otherwise */
const vector = (numbers, name, otherwise) =>
  numbers?.length ? strip(numbers, name) : make("p", { class: "hint" }, otherwise);

/** What is drawn of each symbol. @type {Record<string, Picture>} */
const PICTURES = {
  "h_{t-1}": ({ trace, number }) =>
    vector(trace.steps[number - 1]?.state, named("h_{t-1}"), "Made from what the encoder read."),
  h_t: (here) => vector(step(here).state, named("h_t"), "What the layer passes on; not drawn."),
  h̃_t: (here) => vector(step(here).attentional, named("h̃_t"), "Made from both; it decides the token."),
  q_t: () => make("p", { class: "hint" }, "Asks what of the source matters now."),
  c: () => make("p", { class: "hint" }, "One vector for the sentence, the same at every step."),
  c_t: (here) => vector(step(here).context, named("c_t"), "Not drawn."),
  a_t: weights,
};

/** @param {Here} here */
function weights(here) {
  const { weights, window } = step(here);
  const drawn = bars(here.trace.source, weights ?? [], window);
  const place =
    window && make("p", { class: "hint" }, `It looks through a window: places ${window[0] + 1} to ${window[1] + 1}.`);
  return make("div", {}, drawn, ...(place ? [place] : []));
}

/**
 * All of them, the next token last.
 * @param {Here} here
 */
export function stages(here) {
  const row = here.trace.order.map((name) => stage(name, PICTURES[name]?.(here) ?? ""));
  return make(
    "ol",
    { class: "stages", "aria-label": "One step, in the model’s own order" },
    ...row,
    stage("y_t", candidates(here)),
  );
}

/** @param {string} name @param {Node | string} picture */
function stage(name, picture) {
  const head = make(
    "p",
    { class: "stage-head" },
    symbol(name),
    " ",
    make("span", { class: "stage-name" }, named(name)),
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
      make("th", { scope: "row" }, one.token, ...(chosen ? [make("span", { class: "unseen" }, " (written)")] : [])),
      share(one.probability, `${(100 * one.probability).toFixed(1)} %`),
    );
  });
  return make(
    "table",
    { class: "candidates" },
    make("caption", { class: "unseen" }, "Likeliest tokens"),
    make("tbody", {}, ...rows),
  );
}
