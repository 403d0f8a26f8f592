/** Translates as one types: the newest text counts, and what is old is marked as old. */

import { tooLong, translate } from "./api.js";
import { byId, make } from "./dom.js";
import { apiKey } from "./api_key.js";
import { saveLastRequest } from "./last_request.js";
import { LatestRequest, debounce } from "./latest_request.js";
import { ErrorBanner } from "./error_banner.js";

const OTHERS = 3; // alternatives that are asked for
const SLOW = 1500; // milliseconds after which the server is called slow
export const LONGEST = 2000; // characters of a text whose attention is asked for: a matrix grows with their square

/**
 * @typedef {import("./api.js").TextRequest} Asked
 * @typedef {import("./api.js").Translated} Translated
 * @typedef {{asked: Asked, made: Translated}} Result
 */

export class TranslateView {
  /**
   * @param {import("./language_choices.js").LanguageChoices} choices
   * @param {{charLimit: number, frontendTimeout: number}} settings
   * @param {import("./api_key_field.js").ApiKeyField} apiKeyField
   * @param {(result: Result | null) => void} made called with each new translation; null: there is no text
   */
  constructor(choices, settings, apiKeyField, made) {
    this.choices = choices;
    this.limit = settings.charLimit;
    this.apiKeyField = apiKeyField;
    this.made = made;
    this.latest = new LatestRequest();
    this.notice = new ErrorBanner(byId("notice"));
    this.text = byId("text");
    this.output = byId("translation");
    this.answer = byId("answer");
    this.state = byId("state");
    this.slow = 0;
    this.typed = debounce(() => this.ask(), settings.frontendTimeout);
    this.text.addEventListener("input", () => this.#input());
    byId("clear").addEventListener("click", () => this.#write(""));
    byId("swap").addEventListener("click", () => this.#swap());
    byId("copy").addEventListener("click", () => this.#copy());
    apiKeyField.typed = () => this.notice.clear();
    apiKeyField.taken = (at) => (at === "once" ? this.typed.now() : this.typed.later());
    this.#dress();
  }

  /** What is to be translated, and how. @returns {TextRequest} */
  get asked() {
    const { source, target, model } = this.choices;
    return { text: this.text.value, source, target, model };
  }

  /** The choices have changed. */
  changed() {
    this.#stale();
    this.#dress();
    this.typed.now();
  }

  /** Asks for a translation of what is there now. */
  async ask() {
    const asked = this.asked;
    const wrong = asked.text.trim() && this.#wrong(asked.text);
    if (wrong) return this.#refuse(wrong);
    this.notice.clear();
    if (!asked.text.trim()) return this.#empty();
    const signal = this.latest.start();
    this.#busy();
    try {
      const withAlignment = asked.text.length <= LONGEST;
      const made = await translate(asked, { alternatives: OTHERS, alignment: withAlignment }, signal);
      if (!signal.aborted) this.#show(asked, made);
    } catch (error) {
      if (!signal.aborted) this.#failed(error);
    }
  }

  /** Asks for nothing until something changes again: another text is about to be shown. */
  hold() {
    this.typed.never();
    this.latest.stop();
    this.notice.clear();
    this.#idle();
  }

  /** Shows a text that is being written. @param {string} text @param {string} state @param {boolean} busy */
  writing(text, state, busy) {
    this.answer.setAttribute("aria-busy", String(busy));
    this.answer.classList.remove("stale");
    byId("others").hidden = true;
    this.output.textContent = text;
    this.state.textContent = state;
  }

  /** What one need not ask the server; empty: nothing is wrong. A key may have limits of its own. @param {string} text */
  #wrong(text) {
    const long = !apiKey() && this.#over(text);
    return this.apiKeyField.missing || (long ? tooLong(this.limit) : "");
  }

  /** Whether a text has more characters, as the server counts them, than it takes from everybody. @param {string} text */
  #over(text) {
    return this.limit >= 0 && [...text].length > this.limit;
  }

  /** @param {string} why */
  #refuse(why) {
    this.latest.stop();
    this.#idle();
    this.notice.showText(why);
  }

  #input() {
    this.#stale();
    this.#dress();
    this.typed.later();
  }

  /** @param {string} text */
  #write(text) {
    this.text.value = text;
    this.#input();
    this.typed.now();
    this.text.focus();
  }

  #swap() {
    const translation = this.output.textContent;
    this.choices.swap();
    this.#write(translation || this.text.value);
  }

  async #copy() {
    try {
      await navigator.clipboard.writeText(this.output.textContent);
      this.state.textContent = "Copied";
    } catch {
      getSelection()?.selectAllChildren(this.output);
      this.state.textContent = "Selected: copy it with your keyboard";
    }
  }

  /** What was translated is no longer what is there; it stays, marked. */
  #stale() {
    this.latest.stop();
    this.answer.classList.toggle("stale", this.output.textContent !== "");
  }

  #busy() {
    this.answer.setAttribute("aria-busy", "true");
    this.state.textContent = "Translating…";
    clearTimeout(this.slow);
    this.slow = setTimeout(() => (this.state.textContent = "Still translating: the server is slow"), SLOW);
  }

  #idle() {
    clearTimeout(this.slow);
    this.answer.setAttribute("aria-busy", "false");
    this.state.textContent = "";
  }

  /** @param {TextRequest} asked @param {Translated} made */
  #show(asked, made) {
    this.#idle();
    this.answer.classList.remove("stale");
    this.output.textContent = made.translatedText;
    this.#detected(made.detectedLanguage);
    const others = made.alternatives ?? [];
    byId("alternatives").replaceChildren(...others.map((text) => make("li", { dir: "auto", lang: asked.target }, text)));
    byId("others").hidden = !others.length;
    this.#dress();
    this.made({ asked, made });
  }

  /** @param {Translated["detectedLanguage"]} guess */
  #detected(guess) {
    this.choices.detect(guess?.language ?? "");
    const sure = guess && `${Math.round(guess.confidence)} %`;
    byId("detected").textContent = guess ? `${this.choices.nameOf(guess.language)}, ${sure} sure` : "";
  }

  /** @param {unknown} error */
  #failed(error) {
    this.#idle();
    this.notice.show(error, () => this.ask());
  }

  #empty() {
    this.latest.stop();
    this.#idle();
    this.answer.classList.remove("stale");
    this.output.textContent = "";
    this.#detected(undefined);
    byId("others").hidden = true;
    this.#dress();
    this.made(null);
  }

  /** Counts, languages and buttons as they are now. */
  #dress() {
    saveLastRequest(this.asked);
    const size = [...this.text.value].length;
    const many = this.limit >= 0 ? ` / ${this.limit.toLocaleString("en")}` : "";
    byId("count").textContent = `${size.toLocaleString("en")}${many} characters`;
    this.text.setAttribute("aria-invalid", String(this.#over(this.text.value)));
    this.text.lang = this.choices.spoken;
    this.output.lang = this.choices.target;
    const empty = !this.text.value.trim();
    byId("clear").disabled = this.text.value === "";
    byId("watch").disabled = empty;
    byId("copy").disabled = !this.output.textContent;
  }
}
