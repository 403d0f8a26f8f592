/** The attention view: the words of both sides, and the whole matrix. */

import { choice, isolate, make, option } from "./dom.js";
import { LatestRequest } from "./latest_request.js";
import { splitLines } from "./split_lines.js";
import { AttentionMatrix } from "./attention_matrix.js";
import { ErrorBanner } from "./error_banner.js";
import { WIDEST, loadTrace } from "./trace_cache.js";
import { LONGEST } from "./translate_view.js";
import { column, findStrongest, describeWeights } from "./attention_weights.js";
import { WordLine } from "./word_line.js";

const OWN = ""; // the attention that the model's translation is aligned by
const HINT = "Type a sentence above to see what the model attends to.";

/**
 * @typedef {{source: string[], target: string[], weights: number[][]}} AttentionWeights
 */

export class AttentionView {
  /**
   * @param {HTMLElement} panel
   * @param {import("./language_choices.js").LanguageChoices} choices
   * @param {number} beam that the service searches with, so that the heads are those of the same translation
   */
  constructor(panel, choices, beam) {
    this.choices = choices;
    this.beam = Math.min(beam, WIDEST);
    this.latest = new LatestRequest();
    /** @type {import("./translate_view.js").Result | null} */
    this.result = null;
    /** @type {AttentionWeights} */
    this.attention = { source: [], target: [], weights: [] };
    this.languages = { source: "", target: "" };
    /** @type {AttentionMatrix | null} */
    this.matrix = null;
    this.source = new WordLine(
      "Source",
      (index) => this.point(null, index),
      (index) => this.#cross("source", index),
    );
    this.target = new WordLine(
      "Translation",
      (index) => this.point(index, null),
      (index) => this.#cross("target", index),
    );
    this.readout = make("p", { class: "readout" });
    this.hint = make("p", { class: "hint" }, HINT);
    this.units = choice(
      "Rows and columns",
      [
        ["words", "words"],
        ["tokens", "the model’s tokens"],
      ],
      () => this.#drawMatrix(),
    );
    this.heads = choice("Attention head", [], () => this.#headed());
    this.place = make("div", { class: "matrix-place" });
    const notice = make("div", { class: "notice", role: "alert" });
    this.notice = new ErrorBanner(notice);
    const lines = make("div", { class: "lines" }, this.source.element, this.target.element);
    const tools = make("div", { class: "tools" }, this.units.element, this.heads.element, legend());
    this.body = make("div", { hidden: true }, lines, this.readout, tools, notice, this.place);
    panel.append(make("h2", { class: "unseen" }, "Attention"), this.hint, this.body);
  }

  /** A translation. @param {import("./translate_view.js").Result | null} result */
  show(result) {
    if (result === this.result && result) return;
    this.result = result;
    this.latest.stop();
    this.notice.clear();
    const alignment = result?.made.alignment;
    this.hint.textContent = this.#missing(result);
    this.hint.hidden = Boolean(alignment);
    this.body.hidden = !alignment;
    if (!alignment) return;
    this.units.element.hidden = !alignment.tokens.weights;
    this.#offerHeads();
    this.#fill(alignment, result.asked);
    this.#drawMatrix();
  }

  /** A translation is about to be written. @param {import("./api.js").TextRequest} asked @param {string[]} source */
  begin(asked, source) {
    this.result = null;
    this.latest.stop();
    this.notice.clear();
    this.hint.hidden = true;
    this.body.hidden = false;
    this.units.element.hidden = true;
    this.heads.element.hidden = true;
    this.units.select.value = "words";
    this.matrix = null;
    this.place.replaceChildren();
    this.#fill({ source, target: [], weights: [] }, asked);
  }

  /** A word of it. @param {string} word @param {number[]} weights */
  add(word, weights) {
    this.target.add(word);
    this.attention.target.push(word);
    this.attention.weights.push(weights);
    this.point(this.attention.target.length - 1, null);
  }

  /** It is written. */
  end() {
    this.#describe();
    this.point(null, null);
    this.#drawMatrix();
  }

  /**
   * Points at a target word, a source word, or where they meet.
   * @param {number | null} row
   * @param {number | null} place
   */
  point(row, place) {
    const { source, target, weights } = this.attention;
    this.target.mark(row);
    this.source.mark(place);
    this.matrix?.mark(row, place);
    this.source.shade(row !== null && place === null ? weights[row] : null);
    this.target.shade(row === null && place !== null ? column(weights, place) : null);
    if (row !== null && place !== null)
      this.readout.textContent = meeting(target[row], source[place], weights[row][place]);
    else if (row !== null) this.readout.textContent = `${isolate(target[row])} attends to ${describeWeights(source, weights[row])}`;
    else if (place !== null)
      this.readout.textContent = `${isolate(source[place])} is attended to by ${describeWeights(target, column(weights, place))}`;
    else this.readout.textContent = "Point at a word, or move with the arrow keys.";
  }

  /** Why there is nothing to see. @param {import("./translate_view.js").Result | null} result */
  #missing(result) {
    if (!result) return HINT;
    const model = this.choices.answering;
    if (model && !model.attention)
      return `${model.name} has no attention: it reads the whole sentence into one state and attends to none of its words.`;
    if (result.asked.text.length > LONGEST)
      return `The text has more than ${LONGEST.toLocaleString("en")} characters; that is too long to show its attention.`;
    return "No model was asked: nothing in this text is to be translated.";
  }

  /** @param {AttentionWeights} attention @param {import("./api.js").TextRequest} asked */
  #fill({ source, target, weights }, asked) {
    this.attention = { source, target, weights };
    this.languages = { source: this.choices.spoken, target: asked.target };
    this.source.fill(source, this.languages.source);
    this.target.fill(target, this.languages.target);
    this.#describe();
    this.point(null, null);
  }

  #describe() {
    const { source, target, weights } = this.attention;
    this.target.describe((index) => `attends to ${describeWeights(source, weights[index])}`);
    this.source.describe((index) => `attended to by ${describeWeights(target, column(weights, index))}`);
  }

  /** To the word of the other line that has most to do with this one. @param {string} side @param {number} index */
  #cross(side, index) {
    const { weights } = this.attention;
    const found = findStrongest(side === "target" ? weights[index] : column(weights, index));
    if (found >= 0) (side === "target" ? this.source : this.target).focus(found);
  }

  #offerHeads() {
    const model = this.choices.answering;
    const several = model?.heads && model.layers;
    const names = several
      ? [...Array(model.layers).keys()].flatMap((layer) =>
          [...Array(model.heads).keys()].map((head) => `layer ${layer + 1}, head ${head + 1}`),
        )
      : [];
    const before = this.heads.select.value;
    this.heads.select.replaceChildren(
      option([OWN, "the one that aligns words"]),
      ...names.map((name) => option([name, name])),
    );
    this.heads.select.value = names.includes(before) ? before : OWN;
    this.heads.element.hidden = !names.length;
  }

  /** Heads attend to tokens. */
  #headed() {
    if (this.heads.select.value !== OWN) this.units.select.value = "tokens";
    this.#drawMatrix();
  }

  #drawMatrix() {
    const words = this.units.select.value === "words";
    if (words) this.heads.select.value = OWN;
    const head = this.heads.select.value;
    if (head !== OWN) return void this.#drawHead(head);
    this.latest.stop();
    const tokens = this.result?.made.alignment?.tokens;
    if (words || !tokens?.weights) this.#put(this.attention, "words", true);
    else this.#put({ source: tokens.source, target: tokens.target, weights: tokens.weights }, "tokens", false);
  }

  /** @param {string} head */
  async #drawHead(head) {
    if (!this.result) return;
    const signal = this.latest.start();
    try {
      const { asked } = this.result;
      const [first, ...rest] = splitLines(asked.text);
      const { source, steps, pieces } = await loadTrace({ ...asked, text: first }, this.beam, signal);
      if (signal.aborted) return;
      const part = rest.length ? ", first line only" : "";
      this.#put(
        { source, target: steps.map(({ token }) => token), weights: steps.map(({ heads }) => heads[head]) },
        `tokens, ${head}${pieces > 1 ? ", first piece only" : part}`,
        false,
      );
    } catch (error) {
      if (!signal.aborted) this.notice.show(error, () => this.#drawHead(head));
    }
  }

  /** @param {AttentionWeights} attention @param {string} what @param {boolean} linked whether its cells are those of the lines */
  #put({ source, target, weights }, what, linked) {
    const drawn = {
      caption: `Rows: the translation. Columns: the source. Weights in per cent, of ${what}.`,
      corner: "Translation",
      rows: target,
      columns: source,
      weights,
      ...this.languages,
    };
    const matrix = new AttentionMatrix(drawn, (row, place) => (linked ? this.point(row, place) : matrix.mark(row, place)));
    this.matrix = linked ? matrix : null;
    this.place.replaceChildren(matrix.element);
  }
}

/** @param {string} target @param {string} source @param {number} weight */
function meeting(target, source, weight) {
  return `${isolate(target)} attends to ${isolate(source)}: ${(100 * weight).toFixed(1)} %`;
}

/** What the shades mean. */
export function legend() {
  const steps = [0, 0.25, 0.5, 0.75, 1].map((weight) => {
    const patch = make("span", { class: "patch" }, String(100 * weight));
    patch.style.setProperty("--w", String(weight));
    return patch;
  });
  return make("p", { class: "legend" }, "Weight, in per cent ", make("span", { class: "patches" }, ...steps));
}
