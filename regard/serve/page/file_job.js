/** One file that the service translates. */

import { translateFile } from "./api.js";
import { button, byId, make } from "./dom.js";
import { LatestRequest } from "./latest_request.js";
import { ErrorBanner } from "./error_banner.js";

const SECOND = 1000;

export class FileJob {
  #timer = 0;

  /**
   * @param {File} file
   * @param {import("./language_choices.js").LanguageChoices} choices
   * @param {() => void} gone called when it is removed
   */
  constructor(file, choices, gone) {
    const { source, target, usual } = choices;
    this.asked = { file, source, target };
    this.language = choices.nameOf(target);
    const isStated = source !== "auto"; // otherwise the server guesses by the file
    this.direction = `${isStated ? `from ${choices.nameOf(source)} ` : ""}to ${this.language}`;
    if (isStated && usual) this.direction += ` with ${usual.name}`; // whichever model is chosen for what is typed
    this.latest = new LatestRequest();
    this.state = make("p", { class: "state", role: "status" }, "Waiting for the files before it");
    this.seconds = make("span", { class: "wait", "aria-hidden": "true" });
    const notice = make("div", { class: "notice", role: "alert" });
    this.notice = new ErrorBanner(notice);
    this.closer = button(
      "Stop",
      () => {
        this.#stop();
        this.notice.clear();
        this.element.remove();
        gone();
        byId("choose").focus();
      },
      { class: "quiet" },
    );
    this.#close("Stop");
    this.element = make(
      "li",
      { class: "file", "aria-busy": "false" },
      make("div", { class: "progress", "aria-hidden": "true" }),
      make("p", { class: "file-name" }, file.name),
      this.state,
      this.seconds,
      this.closer,
      notice,
    );
  }

  /** Why it is not sent. @param {string} why */
  refuse(why) {
    this.#settle();
    this.notice.showText(why);
  }

  /** Sends it and waits for its translation; the end is the end of waiting, however it came. @returns {Promise<void>} */
  async run() {
    if (!this.element.isConnected) return;
    const signal = this.latest.start();
    this.notice.clear();
    this.#busy();
    try {
      const link = await translateFile(this.asked, signal);
      if (!signal.aborted) this.#offer(link);
    } catch (error) {
      if (signal.aborted) return;
      this.#settle();
      this.notice.show(error, () => this.run());
    }
  }

  /** What takes long shows that it does. */
  #busy() {
    let count = 0;
    this.element.setAttribute("aria-busy", "true");
    this.#close("Stop");
    this.state.textContent = `Translating ${this.direction} …`;
    this.#timer = setInterval(() => (this.seconds.textContent = `${++count} s`), SECOND);
  }

  /** @param {string} link */
  #offer(link) {
    const { name } = this.asked.file;
    this.#settle();
    const text = `Download ${name} in ${this.language}`;
    this.state.replaceChildren(make("a", { href: link, download: name }, text), " (kept for half an hour)");
  }

  #settle() {
    this.#stop();
    this.state.replaceChildren();
    this.#close("Remove");
  }

  /** What the button that ends it is called. @param {string} text */
  #close(text) {
    this.closer.textContent = text;
    this.closer.setAttribute("aria-label", `${text}: ${this.asked.file.name}`);
  }

  #stop() {
    clearInterval(this.#timer);
    this.latest.stop();
    this.element.setAttribute("aria-busy", "false");
    this.seconds.textContent = "";
  }
}
