/** Puts the page together. */

import * as api from "./api.js";
import { keptAsked } from "./asked.js";
import { Attention } from "./attention.js";
import { Choices } from "./choices.js";
import { Compare } from "./compare.js";
import { byId } from "./dom.js";
import { bestScore, size } from "./facts.js";
import { Files } from "./files.js";
import { KeyField } from "./keyfield.js";
import { Latest } from "./latest.js";
import { Notice } from "./notice.js";
import { Steps } from "./steps.js";
import { Tabs } from "./tabs.js";
import { Training } from "./training.js";
import { Translate } from "./translate.js";
import { Watch } from "./watch.js";

const notice = new Notice(byId("notice"));
const entering = new Latest();

/** Asks what there is to know without a key, and goes on. */
async function start() {
  notice.clear();
  try {
    const [languages, settings] = await Promise.all([api.languages(), api.settings()]);
    const keyField = new KeyField(settings);
    keyField.typed = () => notice.clear();
    keyField.taken = () => enter(languages, settings, keyField);
    await enter(languages, settings, keyField);
  } catch (error) {
    notice.show(error, start);
  }
}

/**
 * Asks which models there are, for which a key may be needed, and begins.
 * @param {api.Language[]} languages
 * @param {api.Settings} settings
 * @param {KeyField} keyField
 */
async function enter(languages, settings, keyField) {
  const signal = entering.start();
  if (keyField.missing) return notice.tell(keyField.missing);
  notice.clear();
  try {
    const [models, predictors] = await Promise.all([api.models(), api.predictors()]);
    for (const link of document.querySelectorAll('[data-for="predict"]')) {
      link.toggleAttribute("hidden", !predictors.length);
    }
    if (!signal.aborted) begin(languages, models, settings, keyField);
  } catch (error) {
    if (!signal.aborted) notice.show(error, () => enter(languages, settings, keyField));
  }
}

/**
 * @param {api.Language[]} languages
 * @param {api.Model[]} models
 * @param {api.Settings} settings
 * @param {KeyField} keyField
 */
function begin(languages, models, settings, keyField) {
  const { source, target } = settings.language;
  const before = keptAsked() ?? { text: "", source: source.code, target: target.code, model: "" };
  /** @type {import("./translate.js").Result | null} */
  let result = null;
  const choices = new Choices(languages, models, before, {
    changed() {
      watch.stop();
      translate.changed();
    },
    answers: facts,
  });
  const attention = new Attention(byId("attention"), choices, settings.beam);
  const training = new Training(byId("training"), choices);
  const panels = {
    attention,
    steps: new Steps(byId("steps"), settings.beam),
    compare: new Compare(byId("compare"), choices),
    training,
  };
  const tabs = new Tabs(Object.keys(panels), (name) => {
    if (name !== "training") training.hide();
    panels[name].show(result);
  });
  byId("main").classList.remove("waiting");
  byId("text").value ||= before.text;
  const translate = new Translate(choices, settings, keyField, (made) => {
    result = made;
    watch.stop();
    if (tabs.current !== "training") panels[tabs.current].show(result);
  });
  const watch = new Watch(translate, attention, () => tabs.open("attention"));
  byId("text").addEventListener("input", () => watch.stop());
  if (settings.filesTranslation) new Files(choices, settings, keyField);
  tabs.open(tabs.current);
  translate.ask();
}

/** What is known of the model that answers. @param {api.Model | undefined} model */
function facts(model) {
  const best = bestScore(model?.scores ?? {});
  const known = [model?.name, model?.recipe !== model?.name && model?.recipe, size(model?.parameters)];
  byId("facts").textContent = [...known, best && `dev ${best}`]
    .filter(Boolean)
    .join(" · ");
}

start();
