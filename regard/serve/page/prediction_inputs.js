/** What one types to ask a model, a form for each task. */

import { make } from "./dom.js";

/**
 * @typedef {{fields: HTMLElement[], asked: () => any}} Question what to put on the page, and what it says: null, nothing
 */

/**
 * A field with its label around it.
 * @param {string} label
 * @param {string} tag
 * @param {Record<string, string | number | boolean>} attributes
 */
function field(label, tag, attributes) {
  const control = /** @type {any} */ (make(tag, { spellcheck: "false", dir: "auto", ...attributes }));
  return { control, element: make("label", {}, label, control) };
}

/** A text. @param {string} label @param {number} rows @returns {Question} */
function text(label, rows) {
  const { control, element } = field(label, "textarea", { rows });
  return { fields: [element], asked: () => (control.value.trim() ? control.value : null) };
}

/** A text, a sentence with a blank, and what may fill it. @returns {Question} */
function cloze() {
  const document = field("Text", "textarea", { rows: 6 });
  const query = field("Sentence with a blank (XXXXX)", "input", { type: "text" });
  const candidates = field("Candidates, with commas between; none: any word of the text", "input", { type: "text" });
  return {
    fields: [document.element, query.element, candidates.element],
    asked() {
      if (!document.control.value.trim() || !query.control.value.trim()) return null;
      const words = candidates.control.value.split(",").map((/** @type {string} */ word) => word.trim());
      const named = words.filter(Boolean);
      return {
        document: document.control.value,
        query: query.control.value,
        ...(named.length && { candidates: named }),
      };
    },
  };
}

/** Numbers over time. @returns {Question} */
function series() {
  const { control, element } = field("Numbers, a line for each step of time", "textarea", { rows: 8 });
  return {
    fields: [element],
    asked() {
      const steps = control.value.split("\n").filter((/** @type {string} */ line) => line.trim());
      if (!steps.length) return null;
      return { inputs: steps.map((/** @type {string} */ line) => line.trim().split(/[\s,;]+/).map(Number)) };
    },
  };
}

/** A picture. @returns {Question} */
function picture() {
  const { control, element } = field("Picture", "input", { type: "file", accept: "image/*,.npy" });
  return {
    fields: [element],
    asked: async () => (control.files.length ? { image: await address(control.files[0]) } : null),
  };
}

/** A file as an address that holds all of it. @param {File} file @returns {Promise<string>} */
function address(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

/** @type {Record<string, () => Question>} */
export const QUESTIONS = {
  tag: () => text("Sentence, its words with spaces between", 2),
  classify: () => text("Text", 5),
  read: cloze,
  regress: series,
  caption: picture,
};
