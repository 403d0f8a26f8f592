/** A vector as a strip of cells: the accent where a number is above zero, grey where it is below. */

import { draw } from "./dom.js";

const ACROSS = 16; // cells in a row
const CELL = 8;

/**
 * @param {number[]} numbers
 * @param {string} name what they are
 */
export function drawVectorStrip(numbers, name) {
  const most = Math.max(...numbers.map(Math.abs)) || 1;
  const down = Math.ceil(numbers.length / ACROSS);
  const range = `from ${Math.min(...numbers).toFixed(2)} to ${Math.max(...numbers).toFixed(2)}`;
  const cells = numbers.map((number, place) =>
    draw("rect", {
      class: number < 0 ? "below" : "above",
      x: CELL * (place % ACROSS),
      y: CELL * Math.floor(place / ACROSS),
      width: CELL - 1,
      height: CELL - 1,
      "fill-opacity": (0.06 + (0.94 * Math.abs(number)) / most).toFixed(3),
    }),
  );
  const label = `${name}: ${numbers.length} numbers ${range}`;
  return draw(
    "svg",
    { class: "strip", viewBox: `0 0 ${CELL * ACROSS} ${CELL * down}`, role: "img", "aria-label": label },
    ...cells,
  );
}
