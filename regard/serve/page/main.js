/** Puts the page together. */

import * as api from "./api.js";
import { Attention } from "./attention.js";
import { Choices } from "./choices.js";
import { Compare } from "./compare.js";
import { byId } from "./dom.js";
import { key, setKey } from "./key.js";
import { Latest } from "./latest.js";
import { Notice } from "./notice.js";
import { Steps } from "./steps.js";
import { Tabs } from "./tabs.js";
import { Training } from "./training.js";
import { Translate } from "./translate.js";
import { Watch } from "./watch.js";

const latest = new Latest();
const notice = new Notice(byId("notice"));
let keyed = start; // what is done with another key

/** Asks what is served, and begins; where nothing is said without a key, one can be given. */
async function start() {
  const signal = latest.start();
  notice.clear();
  try {
    const settings = await api.settings();
    byId("key-field").hidden = !settings.apiKeys;
    const [languages, models] = await Promise.all([api.languages(), api.models()]);
    if (!signal.aborted) begin(languages, models, settings);
  } catch (error) {
    if (!signal.aborted) notice.show(error, start);
  }
}

/**
 * @param {api.Language[]} languages
 * @param {api.Model[]} models
 * @param {Awaited<ReturnType<typeof api.settings>>} settings
 */
function begin(languages, models, settings) {
  /** @type {import("./translate.js").Result | null} */
  let result = null;
  const choices = new Choices(languages, models, settings.language, () => {
    watch.stop();
    facts(choices.answering);
    translate.changed();
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
  const translate = new Translate(choices, settings, (made) => {
    result = made;
    watch.stop();
    if (tabs.current !== "training") panels[tabs.current].show(result);
  });
  keyed = () => translate.ask();
  const watch = new Watch(translate, attention, () => tabs.open("attention"));
  byId("text").addEventListener("input", () => watch.stop());
  facts(choices.answering);
  tabs.open(tabs.current);
  translate.ask(); // the browser may have kept a text from before
}

/** What is known of the model that answers. @param {api.Model | undefined} model */
function facts(model) {
  const size = model?.parameters ? `${(model.parameters / 1e6).toFixed(1)} million parameters` : "";
  const score = model?.scores.bleu ? `dev BLEU ${model.scores.bleu.toFixed(1)}` : "";
  byId("facts").textContent = [model?.name, model?.recipe !== model?.name && model?.recipe, size, score]
    .filter(Boolean)
    .join(" · ");
}

const field = byId("key");
field.value = key();
field.addEventListener("change", () => {
  setKey(field.value);
  keyed();
});
start();
