/** Curves as SVG: that of training a thin line, that of held-out text a strong one with points. */

import { draw, make } from "./dom.js";

const [WIDE, HIGH] = [480, 260];
const NEAR = 0.88; // of the way to the last step: what is nearer to it would touch its number
const EDGE = { left: 36, right: 48, top: 14, bottom: 34 };

/**
 * @typedef {{name: string, points: [number, number][]}} Series
 */

/**
 * Round numbers from one at or below a range to one at or above it, about as many as asked for.
 * @param {number} low
 * @param {number} high
 * @param {number} about
 */
export function ticks(low, high, about) {
  const rough = (high - low || 1) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) ?? rough;
  const first = Math.floor(low / step);
  const last = Math.max(first + 1, Math.ceil(high / step));
  return Array.from({ length: last - first + 1 }, (_, place) => (first + place) * step);
}

/** @param {number} value */
const short = (value) => Number(value.toPrecision(6)).toLocaleString("en");

/**
 * A chart of some curves over the steps of training.
 * @param {string} title
 * @param {Series[]} series
 * @param {string} [note] what one must know to read it
 */
export function chart(title, series, note = "") {
  const known = series.filter(({ points }) => points.length);
  const all = known.flatMap(({ points }) => points);
  const caption = make("figcaption", {}, title);
  if (!all.length)
    return make("figure", { class: "chart" }, caption, make("p", { class: "hint" }, "Nothing was measured yet."));
  const last = Math.max(...all.map(([x]) => x));
  const values = all.map(([, y]) => y);
  const marks = ticks(Math.min(0, ...values), Math.max(0, ...values), 4);
  const [low, high] = [marks[0], marks[marks.length - 1]];
  const x = (/** @type {number} */ step) => EDGE.left + ((WIDE - EDGE.left - EDGE.right) * step) / (last || 1);
  const y = (/** @type {number} */ value) =>
    HIGH - EDGE.bottom - ((HIGH - EDGE.top - EDGE.bottom) * (value - low)) / (high - low);
  const parts = [...axes(marks, last, x, y), ...known.flatMap(({ name, points }) => curve(name, points, x, y))];
  const said = known.map(({ name, points }) => `${name} ${short(points[points.length - 1][1])}`).join(", ");
  const label = `${title} over ${short(last)} steps; at the end: ${said}`;
  return make(
    "figure",
    { class: "chart" },
    caption,
    draw("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": label }, ...parts),
    ...(note ? [make("p", { class: "hint" }, note)] : []),
  );
}

/**
 * @param {number[]} marks on the axis of values
 * @param {number} last
 * @param {(step: number) => number} x
 * @param {(value: number) => number} y
 */
function axes(marks, last, x, y) {
  const across = marks.flatMap((value) => [
    draw("line", { class: "grid", x1: EDGE.left, x2: WIDE - EDGE.right, y1: y(value), y2: y(value) }),
    draw("text", { x: EDGE.left - 8, y: y(value) + 4, "text-anchor": "end" }, short(value)),
  ]);
  const round = ticks(0, last, 4).filter((step) => step < NEAR * last);
  const down = [...round, last].map((step) =>
    draw("text", { x: x(step), y: HIGH - 12, "text-anchor": "middle" }, short(step)),
  );
  return [...across, ...down];
}

/**
 * A curve with its name at its end.
 * @param {string} name
 * @param {[number, number][]} points
 * @param {(step: number) => number} x
 * @param {(value: number) => number} y
 */
function curve(name, points, x, y) {
  const path = points
    .map(([step, value], at) => `${at ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`)
    .join("");
  const [step, value] = points[points.length - 1];
  const dots = name === "dev" ? points : [];
  return [
    draw("path", { class: `curve ${name}`, d: path }),
    ...dots.map(([step, value]) => draw("circle", { class: "point", cx: x(step), cy: y(value), r: 3.5 })),
    draw("text", { class: "name", x: x(step) + 8, y: y(value) + 4 }, name),
  ];
}
