/** The view of a training run: its curves, live while it is trained. */

import { curves } from "./api.js";
import { chart } from "./chart.js";
import { choice, make } from "./dom.js";
import { scoreName } from "./model_facts.js";
import { LatestRequest } from "./latest_request.js";
import { ErrorBanner } from "./error_banner.js";
import { formatNumber, table } from "./data_table.js";

const LOSSES =
  "train: what training lowers, with dropout and label smoothing where the recipe has them. dev: text that it does not " +
  "learn from, measured without either. So dev may well lie below train.";
const EVERY = 2000; // milliseconds between requests

/** @typedef {import("./api.js").Row} Row */

export class TrainingView {
  /**
   * @param {HTMLElement} panel
   * @param {import("./language_choices.js").LanguageChoices} choices
   */
  constructor(panel, choices) {
    this.choices = choices;
    this.latest = new LatestRequest();
    this.timer = 0;
    /** @type {Map<string, Row>} */
    this.rows = new Map();
    const names = choices.models.map(({ name }) => /** @type {[string, string]} */ ([name, name]));
    this.model = choice("Run", names, () => this.#begin());
    this.state = make("p", { class: "hint", role: "status" });
    const notice = make("div", { class: "notice", role: "alert" });
    this.notice = new ErrorBanner(notice);
    this.charts = make("div", { class: "charts" });
    this.table = make("div");
    const details = make("details", {}, make("summary", {}, "The same as a table"), this.table);
    panel.append(
      make("h2", { class: "unseen" }, "Training"),
      make("div", { class: "tools" }, this.model.element, this.state),
      notice,
      this.charts,
      details,
    );
  }

  /** Begins to poll, for the model that translates unless another was chosen. */
  show() {
    if (!this.rows.size) this.model.select.value = this.choices.answering?.name ?? this.model.select.value;
    this.#begin();
  }

  /** Stops polling. */
  hide() {
    this.latest.stop();
    clearTimeout(this.timer);
  }

  #begin() {
    this.hide();
    this.rows = new Map();
    this.#poll(true);
  }

  /** @param {boolean} first whether nothing was asked of this run before: only that counts for the request limit */
  async #poll(first) {
    const signal = this.latest.start();
    // From the last step on, that step included: what was measured there may have come later than the rest of it.
    const after = first ? null : Math.max(0, ...[...this.rows.values()].map(({ step }) => step - 1));
    try {
      const { rows, finished } = await curves(this.model.select.value, after, signal);
      if (signal.aborted) return;
      for (const row of rows) this.rows.set(`${row.step} ${row.kind}`, row);
      this.notice.clear();
      this.#draw(finished);
      if (!finished) this.timer = setTimeout(() => this.#poll(false), EVERY);
    } catch (error) {
      if (!signal.aborted) this.notice.show(error, () => this.#poll(first));
    }
  }

  /** @param {boolean} finished */
  #draw(finished) {
    const rows = [...this.rows.values()];
    const last = Math.max(0, ...rows.map(({ step }) => step));
    const measure = rows.some((row) => row.measure === "chrf") ? "chrf" : "bleu"; // which chooses the best checkpoint
    const best = Math.max(...rows.map((row) => row[measure] ?? -1));
    const bestScore = best >= 0 ? `; best ${scoreName(measure)} ${best.toFixed(1)}` : "";
    this.state.textContent = `${finished ? "Finished" : "In training"}: step ${last.toLocaleString("en")}${bestScore}`;
    this.charts.replaceChildren(
      chart(
        "Loss",
        [
          { name: "train", points: points(rows, "train", "loss") },
          { name: "dev", points: points(rows, "dev", "loss") },
        ],
        LOSSES,
      ),
      chart(scoreName(measure), [{ name: "dev", points: points(rows, "dev", measure) }]),
    );
    this.table.replaceChildren(listed(rows, measure));
  }
}

/**
 * What was measured of one thing; what was not a number is left out.
 * @param {Row[]} rows
 * @param {string} kind
 * @param {"loss" | "bleu" | "chrf"} what
 * @returns {[number, number][]}
 */
function points(rows, kind, what) {
  const found = rows.filter((row) => row.kind === kind && typeof row[what] === "number");
  return found.map((row) => [row.step, /** @type {number} */ (row[what])]);
}

/** @param {Row[]} rows @param {"bleu" | "chrf"} measure */
function listed(rows, measure) {
  const each = rows.map((row) => [
    row.step.toLocaleString("en"),
    row.kind,
    formatNumber(row.loss, 3),
    formatNumber(row[measure], 1),
  ]);
  return table("What was measured in training", ["Step", "Measured on", "Loss", scoreName(measure)], each);
}
