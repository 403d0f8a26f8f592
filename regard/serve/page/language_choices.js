/** From which language, to which, by which model: three choices that must fit together. */

import { byId, option } from "./dom.js";

const AUTO = "auto";

/**
 * @typedef {import("./api.js").Language} Language
 * @typedef {import("./api.js").Model} Model
 */

export class LanguageChoices {
  /**
   * @param {Language[]} languages
   * @param {Model[]} models
   * @param {{source: string, target: string, model: string}} first
   * @param {{changed: () => void, answers: (model: Model | undefined) => void}} callbacks of choices, and of who answers
   */
  constructor(languages, models, first, { changed, answers }) {
    this.languages = languages;
    this.models = models;
    this.answers = answers;
    this.detected = "";
    const readable = languages.filter(({ code, targets }) => targets.some((target) => target !== code));
    this.sources = byId("source");
    this.targets = byId("target");
    this.named = byId("model");
    this.swapper = byId("swap");
    this.sources.append(option([AUTO, "Any language"]), ...readable.map(({ code, name }) => option([code, name])));
    this.named.append(option(["", "Automatic"]), ...models.map((model) => option([model.name, label(model)])));
    this.#set(first.source, first.target);
    if (models.some(({ name }) => name === first.model)) this.named.value = first.model;
    this.sources.addEventListener("change", () => this.#chosen(changed));
    this.targets.addEventListener("change", () => this.#chosen(changed));
    this.named.addEventListener("change", () => this.#modelled(changed));
    this.#dress();
  }

  get source() {
    return this.sources.value;
  }

  get target() {
    return this.targets.value;
  }

  /** The model that was named; empty: any. */
  get model() {
    return this.named.value;
  }

  /** The language of the source, as far as it is known. */
  get spoken() {
    return this.source === AUTO ? this.detected : this.source;
  }

  /** The model that answers, where it is a single one and the languages are known. @returns {Model | undefined} */
  get answering() {
    return this.model ? this.models.find(({ name }) => name === this.model) : this.usual;
  }

  /** The model that answers where none is named: the first one for the two languages. @returns {Model | undefined} */
  get usual() {
    return this.models.find((model) => this.#fits(model));
  }

  /** The name of a language. @param {string} code */
  nameOf(code) {
    return this.languages.find((language) => language.code === code)?.name ?? code;
  }

  /** What the server took the text for. @param {string} code */
  detect(code) {
    this.detected = code;
    this.#dress();
  }

  /** Turns the languages round, if somebody translates back. */
  swap() {
    const [source, target] = [this.target, this.spoken];
    this.#set(source, target);
    if (!this.#fits(this.answering)) this.named.value = "";
    this.#dress();
  }

  /** @param {Model | undefined} model */
  #fits(model) {
    return model?.source.code === this.spoken && model?.target.code === this.target;
  }

  /** Chooses two languages, or what is nearest to them. @param {string} wanted @param {string} target */
  #set(wanted, target) {
    this.sources.value = wanted;
    if (!this.source) this.sources.value = AUTO;
    const { source } = this;
    const known = new Set(
      this.languages.flatMap(({ code, targets }) => (source === AUTO || code === source ? targets : [])),
    );
    const reached = this.languages.filter(({ code }) => known.has(code) && code !== source);
    this.targets.replaceChildren(...reached.map(({ code, name }) => option([code, name])));
    this.targets.value = reached.some(({ code }) => code === target) ? target : reached[0]?.code;
  }

  /** The opposite direction, and who answers, as they are now. */
  #dress() {
    const back = this.languages.find(({ code }) => code === this.target)?.targets ?? [];
    const can = this.spoken !== "" && this.spoken !== this.target && back.includes(this.spoken);
    this.swapper.disabled = !can;
    this.swapper.title = can ? "Swap the languages" : "No model translates back";
    this.answers(this.answering);
  }

  /** @param {() => void} changed */
  #chosen(changed) {
    this.detected = "";
    this.#set(this.source, this.target);
    const model = this.models.find(({ name }) => name === this.model);
    const kept = this.source === AUTO ? model?.target.code === this.target : this.#fits(model);
    if (!kept) this.named.value = "";
    this.#dress();
    changed();
  }

  /** @param {() => void} changed */
  #modelled(changed) {
    const model = this.models.find(({ name }) => name === this.model);
    if (model) this.#set(model.source.code, model.target.code);
    this.#dress();
    changed();
  }
}

/** What a model is called in a list. @param {Model} model */
export function label({ name, source, target }) {
  return `${name} (${source.code} → ${target.code})`;
}
