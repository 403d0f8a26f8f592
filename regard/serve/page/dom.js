/** Makes and finds elements. Text only ever becomes text: nothing here reads HTML. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * @typedef {Record<string, string | number | boolean | null>} Attributes
 */

/**
 * Sets attributes; null and false leave one out.
 * @template {Element} E
 * @param {E} element
 * @param {Attributes} attributes
 * @param {(Node | string)[]} children
 * @returns {E}
 */
function dressed(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children);
  return element;
}

/**
 * An HTML element.
 * @param {string} tag
 * @param {Attributes} [attributes]
 * @param {...(Node | string)} children
 */
export function make(tag, attributes = {}, ...children) {
  return dressed(document.createElement(tag), attributes, children);
}

/**
 * An SVG element.
 * @param {string} tag
 * @param {Attributes} [attributes]
 * @param {...(Node | string)} children
 */
export function draw(tag, attributes = {}, ...children) {
  return dressed(document.createElementNS(SVG, tag), attributes, children);
}

/**
 * A button.
 * @param {string} text
 * @param {() => void} pressed
 * @param {Attributes} [attributes]
 */
export function button(text, pressed, attributes = {}) {
  const made = make("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", pressed);
  return made;
}

/**
 * A choice among several, with its label around it.
 * @param {string} label
 * @param {[value: string, text: string][]} options
 * @param {(value: string) => void} changed
 */
export function choice(label, options, changed) {
  const select = /** @type {HTMLSelectElement} */ (make("select", {}, ...options.map(option)));
  select.addEventListener("change", () => changed(select.value));
  return { select, element: make("label", { class: "field" }, `${label} `, select) };
}

/**
 * One of a choice.
 * @param {[value: string, text: string]} pair
 */
export function option([value, text]) {
  return make("option", { value }, text);
}

/**
 * The element of that id; the page has it.
 * @param {string} id
 * @returns {any}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

const LETTER = /\p{L}/gu;
const REVERSED = /(?=\p{L})[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/gu;

// Letters and punctuation of scripts without spaces between words.
const UNSPACED = /[\p{scx=Hani}\p{scx=Hira}\p{scx=Kana}\p{scx=Thai}\p{scx=Laoo}\p{scx=Khmr}\p{scx=Mymr}\p{scx=Tibt}\uff01-\uff60]/u;
const UNSPACED_SIDE = new RegExp(`${UNSPACED.source}\n|\n${UNSPACED.source}`, "u");

/** What is between two words of a line. @param {string} left @param {string} right */
export const gap = (left, right) => (UNSPACED_SIDE.test(`${left}\n${right}`) ? "" : " ");

/**
 * The words of a text that comes without them.
 * @param {string} text
 * @param {string} lang
 */
export function splitWords(text, lang) {
  const chunks = text.split(/\s+/).filter(Boolean);
  if (!UNSPACED.test(text)) return chunks;
  const segmenter = new Intl.Segmenter(lang, { granularity: "word" });
  const split = (/** @type {string} */ chunk) => Array.from(segmenter.segment(chunk), ({ segment }) => segment);
  return chunks.flatMap((chunk) => (UNSPACED.test(chunk) ? split(chunk) : [chunk]));
}

/** The direction of words: that of most of their letters. @param {string[]} words */
export function direction(words) {
  const text = words.join(" ");
  return 2 * (text.match(REVERSED)?.length ?? 0) > (text.match(LETTER)?.length ?? 0) ? "rtl" : "ltr";
}

/** A word that does not turn the line around it. @param {string} word */
export const isolate = (word) => (direction([word]) === "rtl" ? `\u2068${word}\u2069` : word);

/**
 * How strongly an element is shaded, from 0 to 1; the style sheets read it.
 * @param {HTMLElement} element
 * @param {number | null} weight null: not at all
 */
export function shade(element, weight) {
  if (weight === null) element.style.removeProperty("--w");
  else element.style.setProperty("--w", String(Math.min(1, Math.max(0, weight))));
}
