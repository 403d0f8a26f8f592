/** The view of two models at work on the same sentence. */

import { translate } from "./api.js";
import { label } from "./language_choices.js";
import { common, weightDistance } from "./text_diff.js";
import { choice, direction, gap, make, splitWords } from "./dom.js";
import { bestScore } from "./model_facts.js";
import { LatestRequest } from "./latest_request.js";
import { AttentionMatrix } from "./attention_matrix.js";
import { ErrorBanner } from "./error_banner.js";
import { drawFraction, table } from "./data_table.js";
import { LONGEST } from "./translate_view.js";
import { describeWeights } from "./attention_weights.js";

const HINT = "Type a sentence above to compare what two models make of it.";
const NONE = "No single model translates in this direction.";
const ALONE = "Only one model translates in this direction. To compare it, serve a second one: regard serve RUN RUN.";
const MOST = 8; // words whose attention is compared in the table

/**
 * @typedef {import("./api.js").Model} Model
 * @typedef {import("./api.js").Translated} Translated
 */

export class CompareView {
  /**
   * @param {HTMLElement} panel
   * @param {import("./language_choices.js").LanguageChoices} choices
   */
  constructor(panel, choices) {
    this.choices = choices;
    this.latest = new LatestRequest();
    this.known = "";
    /** @type {import("./translate_view.js").Result | null} */
    this.result = null;
    /** @type {Model[]} */
    this.models = [];
    this.left = choice("Left", [], () => this.#load());
    this.right = choice("Right", [], () => this.#load());
    const notice = make("div", { class: "notice", role: "alert" });
    this.notice = new ErrorBanner(notice);
    this.hint = make("p", { class: "hint" }, HINT);
    this.tools = make("div", { class: "tools", hidden: true }, this.left.element, this.right.element);
    this.place = make("div", { "aria-live": "polite" });
    panel.append(make("h2", { class: "unseen" }, "Compare"), this.tools, this.hint, notice, this.place);
  }

  /** A translation. @param {import("./translate_view.js").Result | null} result */
  show(result) {
    const known = JSON.stringify(result?.asked ?? null);
    if (known === this.known) return;
    this.known = known;
    this.result = result;
    this.#offer();
    this.#load();
  }

  /** The models that translate from the one language to the other. */
  #offer() {
    const here = this.choices.answering;
    const same = (/** @type {Model} */ model) =>
      model.source.code === here?.source.code && model.target.code === here?.target.code;
    this.models = this.choices.models.filter(same);
    const other = this.models.find((model) => model !== here);
    this.#fill(this.left.select, here?.name, other?.name);
    this.#fill(this.right.select, other?.name, here?.name);
    const possible = this.result !== null && this.models.length > 1;
    this.tools.hidden = !possible;
    this.hint.hidden = possible;
    this.hint.textContent = this.result ? (here ? ALONE : NONE) : HINT;
  }

  /**
   * Keeps what was chosen while it can be.
   * @param {HTMLSelectElement} select
   * @param {string | undefined} first
   * @param {string | undefined} avoided
   */
  #fill(select, first, avoided) {
    const before = select.value;
    select.replaceChildren(...this.models.map((model) => make("option", { value: model.name }, label(model))));
    const kept = before !== avoided && this.models.some(({ name }) => name === before);
    select.value = (select === this.right.select && kept ? before : first) ?? "";
  }

  async #load() {
    const signal = this.latest.start();
    this.notice.clear();
    if (!this.result || this.models.length < 2) return this.place.replaceChildren();
    const { text } = this.result.asked;
    const names = [this.left.select.value, this.right.select.value];
    const chosen = names.map((name) => /** @type {Model} */ (this.models.find((model) => model.name === name)));
    this.place.setAttribute("aria-busy", "true");
    try {
      const made = await Promise.all(
        chosen.map(({ name, source, target }) =>
          translate(
            { text, source: source.code, target: target.code, model: name },
            { alignment: text.length <= LONGEST },
            signal,
          ),
        ),
      );
      if (!signal.aborted) this.#draw(chosen, made);
    } catch (error) {
      if (signal.aborted) return;
      this.place.replaceChildren();
      this.notice.show(error, () => this.#load());
    } finally {
      if (!signal.aborted) this.place.setAttribute("aria-busy", "false");
    }
  }

  /** @param {Model[]} models @param {Translated[]} made */
  #draw(models, made) {
    const words = made.map(
      ({ translatedText, alignment }, side) =>
        alignment?.target ?? splitWords(translatedText, models[side].target.code),
    );
    const pairs = common(words[0], words[1]);
    const columns = models.map((model, side) => {
      const shared = new Set(pairs.map((pair) => pair[side]));
      return column(model, made[side], words[side], shared);
    });
    this.place.replaceChildren(make("div", { class: "sides" }, ...columns), differences(models, made, words, pairs));
  }
}

/**
 * One model's side.
 * @param {Model} model
 * @param {Translated} made
 * @param {string[]} words
 * @param {Set<number>} shared
 */
function column(model, made, words, shared) {
  const marked = words.flatMap((word, place) => [
    place ? gap(words[place - 1], word) : "",
    make(shared.has(place) ? "span" : "mark", {}, word),
  ]);
  const facts = [model.recipe, bestScore(model.scores)].filter(Boolean).join(" · ");
  const alignment = made.alignment;
  const missing = model.attention
    ? "This text has no attention to show."
    : `${model.name} has no attention.`;
  return make(
    "section",
    { class: "compared", "aria-label": model.name },
    make("h3", {}, model.name),
    make("p", { class: "hint" }, facts),
    make("p", { class: "sentence", lang: model.target.code, dir: direction(words) }, ...marked),
    alignment ? pictured(model, alignment) : make("p", { class: "hint" }, missing),
  );
}

/** @param {Model} model @param {import("./api.js").Alignment} alignment */
function pictured(model, alignment) {
  const drawn = {
    caption: `Attention of ${model.name}, in per cent`,
    corner: "Translation",
    rows: alignment.target,
    columns: alignment.source,
    weights: alignment.weights,
    source: model.source.code,
    target: model.target.code,
  };
  const matrix = new AttentionMatrix(drawn, (row, column) => matrix.mark(row, column));
  return matrix.element;
}

/**
 * Differences in words and in attention.
 * @param {Model[]} models
 * @param {Translated[]} made
 * @param {string[][]} words
 * @param {[number, number][]} pairs
 */
function differences(models, made, words, pairs) {
  const [left, right] = words;
  const [own, others] = [left.length - pairs.length, right.length - pairs.length];
  const said =
    own || others
      ? `${pairs.length} words are the same, in the same order; ${own} on the left and ${others} on the right are not.`
      : "Both write the same words.";
  return make(
    "section",
    { class: "differences" },
    make("h3", {}, "Where they differ"),
    make("p", {}, said),
    compareAttention(models, made, pairs),
  );
}

/** A text whose numbers stay with their sign in narrow columns. @param {string} text */
const unbroken = (text) => text.replaceAll(" %", "\u00a0%");

/**
 * The words that both write, and what each model attended to; the greatest differences first.
 * @param {Model[]} models
 * @param {Translated[]} made
 * @param {[number, number][]} pairs
 */
function compareAttention(models, made, pairs) {
  const [left, right] = made.map(({ alignment }) => alignment);
  if (!left || !right || !pairs.length) return "";
  const found = pairs
    .filter(([i, j]) => left.weights[i] && right.weights[j])
    .map(([i, j]) => ({
      word: left.target[i],
      one: unbroken(describeWeights(left.source, left.weights[i], 2)),
      other: unbroken(describeWeights(right.source, right.weights[j], 2)),
      far: weightDistance(left.weights[i], right.weights[j]),
    }))
    .sort((a, b) => b.far - a.far)
    .slice(0, MOST);
  const rows = found.map(({ word, one, other, far }) => [word, one, other, drawFraction(far, far.toFixed(2))]);
  const caption =
    "Words that both write, by how much their attention differs: 0 is the same, 1 has nothing in common";
  return table(caption, ["Word", models[0].name, models[1].name, "Difference"], rows, true);
}
