/** Attention weights over the source as bars; the window of local attention is marked. */

import { direction, make, shade } from "./dom.js";
import { makeScrollBox } from "./scroll_box.js";
import { isVisible, percent } from "./attention_weights.js";

/**
 * @param {string[]} tokens
 * @param {number[]} weights
 * @param {[number, number] | null} window first and last place
 * @param {string} lang of the tokens
 */
export function drawWeightBars(tokens, weights, window, lang) {
  const columns = tokens.map((token, place) => {
    const weight = weights[place] ?? 0;
    const inside = !window || (place >= window[0] && place <= window[1]);
    const figure = make(
      "span",
      { class: "figure", "aria-hidden": "true" },
      isVisible(weight) ? String(Math.round(100 * weight)) : "",
    );
    const bar = make("span", { class: "bar", "aria-hidden": "true" });
    const name = make("span", { class: "token" }, make("span", { dir: "auto" }, token));
    const said = make("span", { class: "unseen" }, `: ${percent(weight)}${inside ? "" : ", outside the window"}`);
    const column = make("li", { class: window ? (inside ? "inside" : "outside") : "plain" }, figure, bar, name, said);
    shade(column, weight);
    return column;
  });
  return makeScrollBox(make("ol", { class: "bars", lang: lang || null }, ...columns), { dir: direction(tokens) });
}
