/** The view of one decoding, step by step. */

import { beam } from "./beam.js";
import { button, choice, make } from "./dom.js";
import { Latest } from "./latest.js";
import { Matrix } from "./matrix.js";
import { Notice } from "./notice.js";
import { stages } from "./stages.js";
import { WIDEST, traced } from "./traces.js";

const HINT = "Type a sentence above to step through its translation.";

export class Steps {
  /**
   * @param {HTMLElement} panel
   * @param {number} width of the beam that the service searches with
   */
  constructor(panel, width) {
    this.latest = new Latest();
    this.number = 0;
    this.known = "";
    /** @type {import("./api.js").Asked | null} */
    this.asked = null;
    /** @type {import("./api.js").Trace | null} */
    this.trace = null;
    const notice = make("div", { class: "notice", role: "alert" });
    this.notice = new Notice(notice);
    this.hint = make("p", { class: "hint" }, HINT);
    this.back = button("Back", () => this.go(this.number - 1), { class: "step-button" });
    this.forth = button("Next", () => this.go(this.number + 1), { class: "step-button" });
    this.slider = /** @type {HTMLInputElement} */ (
      make("input", { type: "range", min: 1, value: 1, "aria-label": "Step" })
    );
    this.slider.addEventListener("input", () => this.go(this.slider.valueAsNumber - 1));
    this.count = make("p", { class: "step-count", role: "status" });
    this.written = make("p", { class: "sentence written" });
    const widths = Array.from(
      { length: WIDEST },
      (_, place) => /** @type {[string, string]} */ ([String(place + 1), String(place + 1)]),
    );
    this.beam = choice("Beam", widths, () => this.#load());
    this.beam.select.value = String(Math.min(width, WIDEST));
    this.place = make("div", { class: "step-place" });
    const tools = make(
      "div",
      { class: "tools stepper", role: "group", "aria-label": "Steps" },
      this.back,
      this.slider,
      this.forth,
      this.count,
      this.beam.element,
    );
    this.body = make("div", { hidden: true }, this.written, tools, this.place);
    panel.append(make("h2", { class: "unseen" }, "Step by step"), this.hint, notice, this.body);
    panel.addEventListener("keydown", (event) => this.#key(event));
  }

  /** A translation. @param {import("./translate.js").Result | null} result */
  show(result) {
    this.asked = result?.asked ?? null;
    const known = JSON.stringify(this.asked);
    if (known === this.known) return;
    this.known = known;
    this.#load();
  }

  /** Goes to a step, if there is such a one. @param {number} number */
  go(number) {
    if (!this.trace?.steps[number]) return;
    this.number = number;
    this.#draw(this.trace);
  }

  async #load() {
    const signal = this.latest.start();
    this.notice.clear();
    if (!this.asked) {
      this.body.hidden = true;
      return this.#tell(HINT);
    }
    this.#tell(this.body.hidden ? "Looking…" : "");
    this.body.setAttribute("aria-busy", "true");
    try {
      const trace = await traced(this.asked, Number(this.beam.select.value), signal);
      if (!signal.aborted) this.#begin(trace);
    } catch (error) {
      if (signal.aborted) return;
      this.body.hidden = true;
      this.#tell("");
      this.notice.show(error, () => this.#load());
    }
  }

  /** @param {import("./api.js").Trace} trace */
  #begin(trace) {
    this.trace = trace;
    this.body.setAttribute("aria-busy", "false");
    this.body.hidden = !trace.steps.length;
    this.#tell(trace.steps.length ? "" : "There is nothing in this text to step through.");
    this.number = Math.min(this.number, Math.max(0, trace.steps.length - 1));
    this.slider.max = String(trace.steps.length);
    this.go(this.number);
  }

  /** Why there is nothing to see; empty: there is. @param {string} text */
  #tell(text) {
    this.hint.textContent = text;
    this.hint.hidden = !text;
  }

  /** @param {import("./api.js").Trace} trace */
  #draw(trace) {
    const { number } = this;
    const step = trace.steps[number];
    const last = trace.steps.length - 1;
    this.slider.value = String(number + 1);
    this.slider.setAttribute("aria-valuetext", `${number + 1}: ${step.token}`);
    this.back.toggleAttribute("disabled", number === 0);
    this.forth.toggleAttribute("disabled", number === last);
    this.count.textContent = `Step ${number + 1} of ${last + 1}: ${step.token}`;
    this.written.replaceChildren(...tokens(trace.steps, number));
    const plain = step.weights
      ? []
      : [make("p", { class: "hint" }, `${trace.model} has no attention: each token is written from its state alone.`)];
    this.place.replaceChildren(...plain, stages({ trace, number }), key(step), heads(trace, step), beam(step));
  }

  /** Arrow keys, wherever they mean nothing else. @param {KeyboardEvent} event */
  #key(event) {
    const taken = /** @type {Element} */ (event.target).closest("input, select, td");
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (taken || !move) return;
    event.preventDefault();
    this.go(this.number + move);
  }
}

/**
 * What is written already, what is written now, what will be.
 * @param {import("./api.js").Step[]} steps
 * @param {number} number
 */
function tokens(steps, number) {
  return steps.flatMap(({ token }, place) => {
    const tag = place === number ? "mark" : "span";
    const when = place < number ? "done" : place > number ? "coming" : "now";
    return [make(tag, { class: when }, token), " "];
  });
}

/** What the cells of the vectors mean, where any are drawn. @param {import("./api.js").Step} step */
function key(step) {
  if (!step.context && !step.state) return "";
  return make("p", { class: "key" }, "Cells: blue is above zero, grey below; the stronger, the further from it.");
}

/**
 * Every head's look, where there are heads.
 * @param {import("./api.js").Trace} trace
 * @param {import("./api.js").Step} step
 */
function heads(trace, step) {
  const names = Object.keys(step.heads);
  if (!names.length) return "";
  const drawn = {
    caption: "Each head’s look at the source, in per cent",
    corner: "Head",
    rows: names,
    columns: trace.source,
    weights: names.map((name) => step.heads[name]),
  };
  const matrix = new Matrix(drawn, (row, column) => matrix.mark(row, column));
  return make("section", { class: "heads" }, make("h3", {}, "Heads"), matrix.element);
}
