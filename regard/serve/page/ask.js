/** The page on which models are asked that tag, classify, read or caption. */

import * as api from "./api.js";
import { byId, make, option } from "./dom.js";
import { bestScore, formatSize } from "./model_facts.js";
import { ApiKeyField } from "./api_key_field.js";
import { LatestRequest, debounce } from "./latest_request.js";
import { ErrorBanner } from "./error_banner.js";
import { QUESTIONS } from "./prediction_inputs.js";
import { drawPrediction } from "./prediction_view.js";

const notice = new ErrorBanner(byId("notice"));

class Ask {
  /**
   * @param {api.Predictor[]} predictors
   * @param {api.Settings} settings
   * @param {ApiKeyField} apiKeyField
   */
  constructor(predictors, settings, apiKeyField) {
    this.predictors = predictors;
    this.apiKeyField = apiKeyField;
    this.latest = new LatestRequest();
    this.select = byId("model");
    this.form = byId("form");
    this.answer = byId("answer");
    this.typed = debounce(() => this.ask(), settings.frontendTimeout);
    this.select.replaceChildren(...predictors.map(({ name }) => option([name, name])));
    this.select.addEventListener("change", () => this.#begin());
    this.form.addEventListener("input", () => this.typed.later());
    this.form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.typed.now();
    });
    apiKeyField.typed = () => notice.clear();
    apiKeyField.taken = () => this.typed.now();
    this.#begin();
  }

  /** The model that is asked. */
  get predictor() {
    return /** @type {api.Predictor} */ (this.predictors.find(({ name }) => name === this.select.value));
  }

  /** The form of the model's task. */
  #begin() {
    this.question = QUESTIONS[this.predictor.task]();
    this.form.replaceChildren(...this.question.fields);
    this.answer.replaceChildren();
    notice.clear();
    facts(this.predictor);
  }

  /** Asks what is there now. */
  async ask() {
    const signal = this.latest.start();
    notice.clear();
    if (this.apiKeyField.missing) return notice.showText(this.apiKeyField.missing);
    const asked = await this.question.asked();
    if (signal.aborted) return;
    if (asked === null) return this.answer.replaceChildren();
    this.answer.setAttribute("aria-busy", "true");
    try {
      const { task, predictions } = await api.predict(this.predictor.name, asked, signal);
      if (!signal.aborted) this.answer.replaceChildren(...predictions.flatMap((made) => drawPrediction(task, made, asked)));
    } catch (error) {
      if (!signal.aborted) notice.show(error, () => this.ask());
    } finally {
      if (!signal.aborted) this.answer.setAttribute("aria-busy", "false");
    }
  }
}

/** What is known of a model. @param {api.Predictor} predictor */
function facts({ name, task, recipe, parameters, scores }) {
  const best = bestScore(scores);
  byId("facts").replaceChildren(
    [`task: ${task}`, recipe !== name && recipe, formatSize(parameters), best && `dev ${best}`].filter(Boolean).join(" · "),
  );
}

/** Asks which models there are, for which a key may be needed, and begins. */
async function start() {
  notice.clear();
  try {
    const settings = await api.settings();
    const apiKeyField = new ApiKeyField(settings);
    apiKeyField.typed = () => notice.clear();
    apiKeyField.taken = () => enter(settings, apiKeyField);
    await enter(settings, apiKeyField);
  } catch (error) {
    notice.show(error, start);
  }
}

/**
 * @param {api.Settings} settings
 * @param {ApiKeyField} apiKeyField
 */
async function enter(settings, apiKeyField) {
  if (apiKeyField.missing) return notice.showText(apiKeyField.missing);
  try {
    const [predictors, models] = await Promise.all([api.predictors(), api.models()]);
    byId("main").classList.remove("waiting");
    for (const link of document.querySelectorAll('[data-for="translate"]')) link.toggleAttribute("hidden", !models.length);
    if (!predictors.length) return byId("form").replaceChildren(make("p", { class: "hint" }, NOBODY));
    new Ask(predictors, settings, apiKeyField);
  } catch (error) {
    notice.show(error, () => enter(settings, apiKeyField));
  }
}

const NOBODY = "No model is served here that tags, classifies, reads or captions: regard serve RUN …";

start();
