/** A plain table, which scrolls by itself where it is too wide. */

import { make, shade } from "./dom.js";
import { makeScrollBox } from "./scroll_box.js";

/**
 * @param {string} caption
 * @param {string[]} heads
 * @param {(string | HTMLElement)[][]} rows the first cell of each is its name
 * @param {boolean} [seen] whether the caption is written out
 */
export function table(caption, heads, rows, seen = false) {
  const top = make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)));
  const body = rows.map((cells) => make("tr", {}, ...cells.map(cell)));
  const made = make(
    "table",
    { class: "plain" },
    make("caption", { class: seen ? null : "unseen" }, make("span", {}, caption)),
    make("thead", {}, top),
    make("tbody", {}, ...body),
  );
  return makeScrollBox(made, { role: "region", "aria-label": caption, tabindex: 0 });
}

/** @param {string | HTMLElement} given @param {number} place */
function cell(given, place) {
  if (given instanceof HTMLTableCellElement) return given;
  return place ? make("td", { dir: "auto" }, given) : make("th", { scope: "row", dir: "auto" }, given);
}

/** A number, to stand under others. @param {number | null | undefined} value @param {number} digits */
export function formatNumber(value, digits) {
  return make("td", { class: "number" }, typeof value === "number" ? value.toFixed(digits).replace("-", "−") : "–");
}

/** A share of 1 with a bar beside it. @param {number} share @param {string} text */
export function drawFraction(share, text) {
  const made = make("td", { class: "chance" }, make("span", { class: "figure" }, text), make("span", { class: "bar" }));
  shade(made, share);
  return made;
}
