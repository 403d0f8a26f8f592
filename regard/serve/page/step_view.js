/** The view of one decoding, step by step. */

import { drawBeamTable } from "./beam_table.js";
import { button, choice, direction, isolate, make, option } from "./dom.js";
import { LatestRequest } from "./latest_request.js";
import { splitLines } from "./split_lines.js";
import { AttentionMatrix } from "./attention_matrix.js";
import { ErrorBanner } from "./error_banner.js";
import { explainStages, drawStages } from "./step_stages.js";
import { LONGEST, WIDEST, loadTrace } from "./trace_cache.js";

const HINT = "Type a sentence above to step through its translation.";
const NOTHING = "There is nothing in this text to step through.";
const SHORT = 40; // characters of a line by which one knows it

export class StepView {
  /**
   * @param {HTMLElement} panel
   * @param {number} width of the beam that the service searches with
   */
  constructor(panel, width) {
    this.latest = new LatestRequest();
    this.number = 0;
    this.known = "";
    /** @type {import("./api.js").TextRequest | null} */
    this.asked = null;
    /** @type {string[]} */
    this.lines = [];
    /** @type {import("./api.js").Trace | null} */
    this.trace = null;
    const notice = make("div", { class: "notice", role: "alert" });
    this.notice = new ErrorBanner(notice);
    this.hint = make("p", { class: "hint" }, HINT);
    this.back = button("Back", () => this.go(this.number - 1), { class: "step-button" });
    this.forth = button("Next", () => this.go(this.number + 1), { class: "step-button" });
    this.slider = /** @type {HTMLInputElement} */ (
      make("input", { type: "range", min: 1, value: 1, "aria-label": "Step" })
    );
    this.slider.addEventListener("input", () => this.go(this.slider.valueAsNumber - 1));
    this.line = choice("Line", [], () => this.#load());
    this.line.element.hidden = true;
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
    this.part = make("p", { class: "hint" });
    this.meanings = make("div");
    this.rest = make("div");
    const parts = [this.written, this.part, tools, this.place, this.meanings, this.rest];
    this.body = make("div", { hidden: true }, ...parts);
    const which = make("div", { class: "tools which" }, this.line.element);
    panel.append(make("h2", { class: "unseen" }, "Step by step"), which, this.hint, notice, this.body);
    panel.addEventListener("keydown", (event) => this.#key(event));
  }

  /** A translation. @param {import("./translate_view.js").Result | null} result */
  show(result) {
    const spoken = result?.made.detectedLanguage?.language ?? result?.asked.source ?? "";
    this.asked = result && { ...result.asked, source: spoken }; // a single line might be taken for another language
    const known = JSON.stringify(this.asked);
    if (known === this.known) return;
    this.known = known;
    this.#offer(splitLines(this.asked?.text ?? ""));
    this.#load();
  }

  /** The lines of a text, where there is a choice. @param {string[]} found */
  #offer(found) {
    const { select, element } = this.line;
    const before = Math.max(0, select.selectedIndex);
    this.lines = found;
    select.replaceChildren(...found.map((line, place) => option([String(place), `${place + 1}: ${brief(line)}`])));
    select.selectedIndex = Math.min(before, found.length - 1);
    element.hidden = found.length < 2;
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
    const text = this.lines[this.line.select.selectedIndex];
    const why = this.#missing(text);
    if (!this.asked || why) {
      this.body.hidden = true;
      return this.#showHint(why);
    }
    this.#showHint(this.body.hidden ? "Loading…" : "");
    this.body.setAttribute("aria-busy", "true");
    try {
      const trace = await loadTrace({ ...this.asked, text }, Number(this.beam.select.value), signal);
      if (!signal.aborted) this.#begin(trace);
    } catch (error) {
      if (signal.aborted) return;
      this.body.hidden = true;
      this.#showHint("");
      this.notice.show(error, () => this.#load());
    }
  }

  /** Why nothing is asked for; empty: it is. @param {string | undefined} line */
  #missing(line) {
    if (!this.asked) return HINT;
    if (line === undefined) return NOTHING;
    if ([...line].length <= LONGEST) return "";
    return `This line has more than ${LONGEST} characters; that is too long to step through.`;
  }

  /** @param {import("./api.js").Trace} trace */
  #begin(trace) {
    this.trace = trace;
    const several = trace.pieces > 1;
    this.part.textContent = several
      ? `The model takes this line in ${trace.pieces} pieces; this is the first. On a line of its own each can be seen.`
      : "";
    this.meanings.replaceChildren(explainStages(trace));
    this.body.setAttribute("aria-busy", "false");
    this.body.hidden = !trace.steps.length;
    this.#showHint(trace.steps.length ? "" : NOTHING);
    this.number = Math.min(this.number, Math.max(0, trace.steps.length - 1));
    this.slider.max = String(trace.steps.length);
    this.go(this.number);
  }

  /** Why there is nothing to see; empty: there is. @param {string} text */
  #showHint(text) {
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
    this.count.textContent = `Step ${number + 1} of ${last + 1}: ${isolate(step.token)}`;
    const { source, target } = this.asked ?? { source: "", target: "" };
    this.written.lang = target;
    this.written.dir = direction(trace.steps.map(({ token }) => token));
    this.written.replaceChildren(...tokens(trace.steps, number));
    const plain = step.weights
      ? []
      : [make("p", { class: "hint" }, `${trace.model} has no attention: each token is written from its state alone.`)];
    this.place.replaceChildren(...plain, drawStages({ trace, number, source, target }), key(step));
    this.rest.replaceChildren(heads(trace, step, source), drawBeamTable(step));
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

/** The beginning of a line. @param {string} line */
const brief = (line) => (line.length > SHORT ? `${line.slice(0, SHORT)}…` : line);

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
 * The attention of each head, where there are heads.
 * @param {import("./api.js").Trace} trace
 * @param {import("./api.js").Step} step
 * @param {string} source language
 */
function heads(trace, step, source) {
  const names = Object.keys(step.heads);
  if (!names.length) return "";
  const drawn = {
    caption: "Attention of each head to the source, in per cent",
    corner: "Head",
    rows: names,
    columns: trace.source,
    source,
    weights: names.map((name) => step.heads[name]),
  };
  const matrix = new AttentionMatrix(drawn, (row, column) => matrix.mark(row, column));
  return make("section", { class: "heads" }, make("h3", {}, "Heads"), matrix.element);
}
