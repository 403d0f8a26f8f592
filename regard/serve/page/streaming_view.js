/** Watches the model write: word by word, each with its attention to the source. */

import { byId } from "./dom.js";
import { LatestRequest } from "./latest_request.js";
import { streamWords } from "./event_stream.js";

const PACE = 220; // milliseconds from word to word, for the eye
const GREEDY = "The likeliest word each time";

export class StreamingView {
  /**
   * @param {import("./translate_view.js").TranslateView} translate
   * @param {import("./attention_view.js").AttentionView} attention
   * @param {() => void} begun
   */
  constructor(translate, attention, begun) {
    this.translate = translate;
    this.attention = attention;
    this.latest = new LatestRequest();
    byId("watch").addEventListener("click", () => {
      begun();
      this.#run(this.latest.start());
    });
  }

  /** Stops the stream. */
  stop() {
    this.latest.stop();
  }

  /** @param {AbortSignal} signal */
  async #run(signal) {
    const { translate, attention } = this;
    const asked = translate.asked;
    translate.hold();
    let [text, hasWeights] = ["", false];
    /** @type {string[]} */
    let source = [];
    try {
      for await (const { kind, data } of streamWords(asked, signal)) {
        if (kind === "start") source = data.source;
        if (kind !== "word") continue;
        if (data.weights && !hasWeights) attention.begin(asked, source);
        hasWeights = Boolean(data.weights);
        text += data.before + data.word;
        translate.writing(text, "Writing…", true);
        if (hasWeights) attention.add(data.word, data.weights);
        await pause(signal);
        if (signal.aborted) return;
      }
      translate.writing(text, GREEDY, false);
      if (hasWeights) attention.end();
    } catch (error) {
      if (!signal.aborted) translate.notice.show(error, () => this.#run(this.latest.start()));
    }
  }
}

/** A moment for the eye; none for those who want no motion. @param {AbortSignal} signal */
function pause(signal) {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  return new Promise((done) => {
    const timer = setTimeout(done, still ? 0 : PACE);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      done(undefined);
    });
  });
}
