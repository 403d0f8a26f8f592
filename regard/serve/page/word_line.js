/** A sentence as a line of words that can be pointed at and shaded. */

import { direction, gap, make, shade } from "./dom.js";
import { isVisible } from "./attention_weights.js";

const MOVES = { ArrowRight: 1, ArrowLeft: -1 };

export class WordLine {
  /**
   * @param {string} label
   * @param {(index: number | null) => void} pointed
   * @param {(index: number) => void} crossed asked for the other line
   */
  constructor(label, pointed, crossed) {
    this.pointed = pointed;
    this.crossed = crossed;
    this.line = make("p", { class: "words sentence", role: "group", "aria-label": label });
    this.element = make(
      "div",
      { class: "line" },
      make("p", { class: "side", "aria-hidden": "true" }, label),
      this.line,
    );
    /** @type {HTMLElement[]} */
    this.words = [];
    this.#listen();
  }

  /**
   * Other words.
   * @param {string[]} words
   * @param {string} lang
   */
  fill(words, lang) {
    this.line.lang = lang;
    this.line.replaceChildren();
    this.words = [];
    for (const word of words) this.add(word);
  }

  /** One more word. @param {string} text */
  add(text) {
    const index = this.words.length;
    const word = make("button", { type: "button", class: "word", tabindex: index ? -1 : 0, "data-index": index }, text);
    this.line.append(index ? gap(this.words[index - 1].textContent ?? "", text) : "", word);
    this.words.push(word);
    this.line.dir = direction(this.words.map(({ textContent }) => textContent ?? ""));
  }

  /**
   * What each word says to those who hear the page.
   * @param {(index: number) => string} describeWord
   */
  describe(describeWord) {
    this.words.forEach((word, index) => word.setAttribute("aria-label", `${word.textContent}: ${describeWord(index)}`));
  }

  /**
   * Shades each word; null: none.
   * @param {number[] | null} weights
   */
  shade(weights) {
    this.words.forEach((word, index) => {
      const weight = weights && weights[index];
      shade(word, weight);
      word.toggleAttribute("data-weight", false);
      if (weight !== null && isVisible(weight)) word.setAttribute("data-weight", String(Math.round(100 * weight)));
    });
  }

  /** Marks the word that is pointed at. @param {number | null} index */
  mark(index) {
    this.words.forEach((word, each) => word.classList.toggle("pointed", each === index));
  }

  /** @param {number} index */
  focus(index) {
    this.words.forEach((word, each) => (word.tabIndex = each === index ? 0 : -1));
    this.words[index]?.focus();
  }

  #listen() {
    const { line } = this;
    const of = (/** @type {Event} */ event) => {
      const word = /** @type {Element} */ (event.target).closest(".word");
      return word && Number(/** @type {HTMLElement} */ (word).dataset.index);
    };
    for (const kind of ["pointerover", "focusin", "click"]) {
      line.addEventListener(kind, (event) => {
        const index = of(event);
        if (index !== null) this.pointed(index);
      });
    }
    line.addEventListener("pointerleave", (event) => {
      const held = this.words.indexOf(/** @type {HTMLElement} */ (document.activeElement));
      if (event.pointerType === "mouse") this.pointed(held < 0 ? null : held);
    });
    line.addEventListener("focusout", () => this.pointed(null));
    line.addEventListener("keydown", (event) => this.#move(event, of(event)));
  }

  /** Arrow keys. @param {KeyboardEvent} event @param {number | null} index */
  #move(event, index) {
    if (index === null) return;
    const ends = { Home: 0, End: this.words.length - 1 }[event.key];
    const next = ends ?? (event.key in MOVES ? index + MOVES[event.key] * (this.line.dir === "rtl" ? -1 : 1) : null);
    if (event.key === "ArrowUp" || event.key === "ArrowDown") this.crossed(index);
    else if (next !== null) this.focus(Math.min(this.words.length - 1, Math.max(0, next)));
    else return;
    event.preventDefault();
  }
}
