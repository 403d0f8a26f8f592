/** A prediction: the answer, its probability, and what the model attended to. */

import { chart } from "./chart.js";
import { direction, draw, make, shade } from "./dom.js";
import { percent } from "./attention_weights.js";

const MOST = 10; // chances that are shown
const UNSURE = 0.5; // a tag that is held to be less likely is marked
const CELL = 10;
const END = "</s>"; // how models write that they have said all
const DARKEST = 0.75; // where the attention weight is 0

/**
 * @typedef {{label: string, words: string[], weights: number[], weight: number | null, darkest: number}} Line
 * @typedef {{text: string, attention_lines: Line[], [name: string]: any}} Prediction
 */

/**
 * All there is to see of a prediction.
 * @param {string} task
 * @param {Prediction} made
 * @param {any} asked
 * @returns {HTMLElement[]}
 */
export function drawPrediction(task, made, asked) {
  return [...ANSWERS[task](made, asked), ...(task === "caption" ? [] : drawAttention(made.attention_lines))];
}

/** @type {Record<string, (made: Prediction, asked: any) => HTMLElement[]>} */
const ANSWERS = {
  tag: ({ words, tags, probabilities }) => [tagged(words, tags, probabilities)],
  classify: ({ label, probabilities }) => [verdict(label), chances(Object.entries(probabilities))],
  read: ({ answer, candidates }) => [
    verdict(answer),
    chances(candidates.map((/** @type {any} */ { word, probability }) => [word, probability])),
  ],
  regress: ({ outputs }) => outputs[0]?.map((/** @type {number} */ _, /** @type {number} */ place) => followed(outputs, place)) ?? [],
  caption: ({ caption, tokens, weights, seen }, { image }) => [verdict(caption), grids(tokens, weights, image, seen)],
};

/**
 * One number of each step, over time.
 * @param {number[][]} outputs
 * @param {number} place
 */
const followed = (outputs, place) =>
  chart(`Number ${place + 1}`, [{ name: "model", points: outputs.map((step, time) => [time + 1, step[place]]) }]);

/** @param {string} text */
const verdict = (text) => make("p", { class: "verdict", dir: "auto" }, text);

/**
 * What might be right, the likeliest first.
 * @param {[string, number][]} pairs
 */
function chances(pairs) {
  const ranked = [...pairs].sort((one, other) => other[1] - one[1]).slice(0, MOST);
  const rows = ranked.map(([name, chance]) => {
    const amount = make("span", { class: "amount", "aria-hidden": "true" });
    shade(amount, chance);
    return make("li", {}, make("span", { dir: "auto" }, name), amount, make("span", { class: "figure" }, percent(chance)));
  });
  return make("ol", { class: "chances", "aria-label": "How likely each is" }, ...rows);
}

/**
 * Words with their tags below.
 * @param {string[]} words
 * @param {string[]} tags
 * @param {number[]} probabilities
 */
function tagged(words, tags, probabilities) {
  const each = words.map((word, place) => {
    const sure = probabilities[place];
    const tag = make("span", { class: "tag", title: percent(sure) }, tags[place]);
    return make("li", { class: sure < UNSURE ? "unsure" : "sure" }, make("span", {}, word), tag);
  });
  return make("ol", { class: "tagged", dir: direction(words), "aria-label": "Words and their tags" }, ...each);
}

/**
 * Lines of words, each the darker the more it was attended to.
 * @param {Line[]} lines
 * @returns {HTMLElement[]}
 */
function drawAttention(lines) {
  if (!lines.length) return [];
  const rows = lines.flatMap(({ label, words, weights, weight, darkest }) => {
    const name = make("dt", { dir: "auto" }, label);
    shade(name, weight);
    const spans = words.flatMap((word, place) => {
      const span = make("span", { class: "word", title: percent(weights[place]) }, word);
      shade(span, darkest > 0 ? weights[place] / darkest : 0);
      return [span, " "];
    });
    return [name, make("dd", { dir: direction(words) }, ...spans)];
  });
  return [make("h2", {}, "Attention"), make("dl", { class: "attended" }, ...rows)];
}

/**
 * The picture once for each word, lit where the model attended to it.
 * @param {string[]} tokens
 * @param {number[][][]} weights rows of columns for each token
 * @param {string} image
 * @param {number[]} [seen] the part of the image that the model saw: left, top, right and bottom, from 0 to 1
 */
function grids(tokens, weights, image, [left, top, right, bottom] = [0, 0, 1, 1]) {
  const each = tokens.map((token, number) => {
    const rows = weights[number];
    const word = token === END ? "(end)" : token;
    const [down, across, most] = [rows.length, rows[0].length, Math.max(...rows.flat()) || 1];
    const cells = rows.flatMap((row, y) =>
      row.map((weight, x) =>
        draw("rect", {
          x: CELL * x,
          y: CELL * y,
          width: CELL,
          height: CELL,
          "fill-opacity": (DARKEST * (1 - weight / most)).toFixed(3),
        }),
      ),
    );
    const size = { width: CELL * across, height: CELL * down };
    const [wide, high] = [size.width / (right - left), size.height / (bottom - top)];
    const whole = { x: -left * wide, y: -top * high, width: wide, height: high };
    const under = /^data:image\//.test(image) ? [draw("image", { href: image, preserveAspectRatio: "none", ...whole })] : [];
    const view = { viewBox: `0 0 ${size.width} ${size.height}`, role: "img", "aria-label": `attention for “${word}”` };
    return make("li", {}, draw("svg", view, ...under, ...cells), make("p", {}, word));
  });
  return make("ol", { class: "grids", dir: direction(tokens), "aria-label": "The picture, word by word" }, ...each);
}
