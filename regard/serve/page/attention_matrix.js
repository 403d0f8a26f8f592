/** Weights as a table that is a heat map: a row for each target word, a column for each source word. */

import { direction, make, shade } from "./dom.js";
import { makeScrollBox } from "./scroll_box.js";
import { isVisible, percent } from "./attention_weights.js";

const MOST = 100; // rows and columns that are drawn
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * @typedef {object} Drawn
 * @property {string} caption what the table shows
 * @property {string} corner what its rows are
 * @property {string[]} rows
 * @property {string[]} columns
 * @property {number[][]} weights
 * @property {string} [source] language of the columns
 * @property {string} [target] language of the rows
 */

export class AttentionMatrix {
  /**
   * @param {Drawn} drawn
   * @param {(row: number | null, column: number | null) => void} [pointed]
   */
  constructor({ caption, corner, rows, columns, weights, source = "", target = "" }, pointed = () => {}) {
    this.pointed = pointed;
    const [top, side] = [{ scope: "col", lang: source || null }, { scope: "row", dir: "auto", lang: target || null }];
    this.dir = direction(columns);
    this.tops = columns.slice(0, MOST).map((word) => make("th", top, make("span", { dir: "auto" }, word)));
    this.sides = rows.slice(0, MOST).map((word) => make("th", side, word));
    this.cells = this.sides.map((_, row) =>
      this.tops.map((_, column) => cell(rows[row], columns[column], weights[row][column], row, column)),
    );
    const head = make(
      "thead",
      {},
      make(
        "tr",
        {},
        make("th", { scope: "col", class: "corner" }, make("span", { class: "unseen" }, corner)),
        ...this.tops,
      ),
    );
    const body = make("tbody", {}, ...this.cells.map((cells, row) => make("tr", {}, this.sides[row], ...cells)));
    const title = make("caption", { dir: "ltr" }, make("span", {}, caption));
    const table = make("table", { class: "matrix", role: "grid" }, title, head, body);
    table.style.setProperty("--columns", String(Math.max(1, this.tops.length)));
    const cut = rows.length > MOST || columns.length > MOST;
    const note = cut ? [make("p", { class: "hint" }, `The first ${MOST} words of each side are drawn.`)] : [];
    this.element = make("div", { class: "matrix-box", dir: this.dir }, makeScrollBox(table), ...note);
    if (this.cells[0]?.[0]) this.cells[0][0].tabIndex = 0;
    this.#listen(table);
  }

  /**
   * Marks the names of a row and a column, and the cell where they meet.
   * @param {number | null} row
   * @param {number | null} column
   */
  mark(row, column) {
    this.sides.forEach((side, each) => side.classList.toggle("pointed", each === row));
    this.tops.forEach((top, each) => top.classList.toggle("pointed", each === column));
    this.cells.forEach((cells, y) =>
      cells.forEach((one, x) => one.classList.toggle("pointed", y === row && x === column)),
    );
  }

  /** @param {HTMLElement} table */
  #listen(table) {
    const of = (/** @type {Event} */ event) => {
      const found = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("td[data-row]"));
      return found && [Number(found.dataset.row), Number(found.dataset.column)];
    };
    for (const kind of ["pointerover", "focusin"]) {
      table.addEventListener(kind, (event) => {
        const place = of(event);
        if (place) this.pointed(place[0], place[1]);
      });
    }
    table.addEventListener("pointerleave", () => this.pointed(null, null));
    table.addEventListener("focusout", () => this.pointed(null, null));
    table.addEventListener("keydown", (event) => {
      const place = of(event);
      const move = MOVES[event.key];
      if (!place || !move) return;
      event.preventDefault();
      this.#focus(place, [place[0] + move[0], place[1] + move[1] * (this.dir === "rtl" ? -1 : 1)]);
    });
  }

  /** @param {number[]} from @param {number[]} to */
  #focus(from, to) {
    const next = this.cells[to[0]]?.[to[1]];
    if (!next) return;
    this.cells[from[0]][from[1]].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}

/**
 * One weight; its label is complete for screen readers.
 * @param {string} target
 * @param {string} source
 * @param {number} weight
 * @param {number} row
 * @param {number} column
 */
function cell(target, source, weight, row, column) {
  const label = `${target} attends to ${source}: ${percent(weight)}`;
  const text = isVisible(weight) ? String(Math.round(100 * weight)) : "";
  const made = make("td", { "aria-label": label, tabindex: -1, "data-row": row, "data-column": column }, text);
  shade(made, weight);
  return made;
}
