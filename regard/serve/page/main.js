/** Puts the page together. */

import * as api from "./api.js";
import { loadLastRequest } from "./last_request.js";
import { AttentionView } from "./attention_view.js";
import { LanguageChoices } from "./language_choices.js";
import { CompareView } from "./compare_view.js";
import { byId } from "./dom.js";
import { bestScore, formatSize } from "./model_facts.js";
import { FileList } from "./file_list.js";
import { ApiKeyField } from "./api_key_field.js";
import { LatestRequest } from "./latest_request.js";
import { ErrorBanner } from "./error_banner.js";
import { StepView } from "./step_view.js";
import { Tabs } from "./tabs.js";
import { TrainingView } from "./training_view.js";
import { TranslateView } from "./translate_view.js";
import { StreamingView } from "./streaming_view.js";

const notice = new ErrorBanner(byId("notice"));
const entering = new LatestRequest();

/** Asks what there is to know without a key, and goes on. */
async function start() {
  notice.clear();
  try {
    const [languages, settings] = await Promise.all([api.languages(), api.settings()]);
    const apiKeyField = new ApiKeyField(settings);
    apiKeyField.typed = () => notice.clear();
    apiKeyField.taken = () => enter(languages, settings, apiKeyField);
    await enter(languages, settings, apiKeyField);
  } catch (error) {
    notice.show(error, start);
  }
}

/**
 * Asks which models there are, for which a key may be needed, and begins.
 * @param {api.Language[]} languages
 * @param {api.Settings} settings
 * @param {ApiKeyField} apiKeyField
 */
async function enter(languages, settings, apiKeyField) {
  const signal = entering.start();
  if (apiKeyField.missing) return notice.showText(apiKeyField.missing);
  notice.clear();
  try {
    const [models, predictors] = await Promise.all([api.models(), api.predictors()]);
    for (const link of document.querySelectorAll('[data-for="predict"]')) {
      link.toggleAttribute("hidden", !predictors.length);
    }
    if (!signal.aborted) begin(languages, models, settings, apiKeyField);
  } catch (error) {
    if (!signal.aborted) notice.show(error, () => enter(languages, settings, apiKeyField));
  }
}

/**
 * @param {api.Language[]} languages
 * @param {api.Model[]} models
 * @param {api.Settings} settings
 * @param {ApiKeyField} apiKeyField
 */
function begin(languages, models, settings, apiKeyField) {
  const { source, target } = settings.language;
  const before = loadLastRequest() ?? { text: "", source: source.code, target: target.code, model: "" };
  /** @type {import("./translate_view.js").Result | null} */
  let result = null;
  const choices = new LanguageChoices(languages, models, before, {
    changed() {
      watch.stop();
      translate.changed();
    },
    answers: facts,
  });
  const attention = new AttentionView(byId("attention"), choices, settings.beam);
  const training = new TrainingView(byId("training"), choices);
  const panels = {
    attention,
    steps: new StepView(byId("steps"), settings.beam),
    compare: new CompareView(byId("compare"), choices),
    training,
  };
  const tabs = new Tabs(Object.keys(panels), (name) => {
    if (name !== "training") training.hide();
    panels[name].show(result);
  });
  byId("main").classList.remove("waiting");
  byId("text").value ||= before.text;
  const translate = new TranslateView(choices, settings, apiKeyField, (made) => {
    result = made;
    watch.stop();
    if (tabs.current !== "training") panels[tabs.current].show(result);
  });
  const watch = new StreamingView(translate, attention, () => tabs.open("attention"));
  byId("text").addEventListener("input", () => watch.stop());
  if (settings.filesTranslation) new FileList(choices, settings, apiKeyField);
  tabs.open(tabs.current);
  translate.ask();
}

/** What is known of the model that answers. @param {api.Model | undefined} model */
function facts(model) {
  const best = bestScore(model?.scores ?? {});
  const known = [model?.name, model?.recipe !== model?.name && model?.recipe, formatSize(model?.parameters)];
  byId("facts").textContent = [...known, best && `dev ${best}`]
    .filter(Boolean)
    .join(" · ");
}

start();
