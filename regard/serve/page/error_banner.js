/** Says that something went wrong, and when or how to try again. */

import { RequestError } from "./api.js";
import { button, make } from "./dom.js";

const PAUSES = [2, 4, 8, 15, 30]; // seconds before a server that is away is asked again: the first time, the second …

export class ErrorBanner {
  #timer = 0;
  #tries = 0;

  /**
   * @param {HTMLElement} place
   */
  constructor(place) {
    this.place = place;
  }

  /** Nothing is wrong any more. */
  clear() {
    this.#tries = 0;
    this.#empty();
  }

  /** Shows a message that the reader can act on; announced once, however often it is shown. @param {string} text */
  showText(text) {
    if (this.place.textContent === text) return;
    this.clear();
    this.place.append(make("p", {}, text));
  }

  /**
   * An error. Where the server says when to come again, it is asked again then; where it is away, after a pause that
   * grows from time to time.
   * @param {unknown} error
   * @param {() => void} again
   */
  show(error, again) {
    this.#empty();
    if (!(error instanceof RequestError)) throw error;
    this.place.append(make("p", {}, error.message));
    const pause = PAUSES[Math.min(this.#tries, PAUSES.length - 1)];
    const wait = error.wait ?? (error.away ? pause : null);
    if (wait !== null) this.#count(wait, again);
    if (error.wait !== null || (error.status < 500 && !error.away)) return;
    const press = () => {
      this.#empty();
      again();
    };
    this.place.append(button("Try again", press, { class: "quiet" }));
  }

  #empty() {
    clearInterval(this.#timer);
    this.place.replaceChildren();
  }

  /**
   * Counts down; announced once to screen readers, shown to all others.
   * @param {number} seconds
   * @param {() => void} again
   */
  #count(seconds, again) {
    const left = make("span", { class: "wait", "aria-hidden": "true" });
    const showSeconds = () => (left.textContent = `${seconds} s`);
    this.place.append(
      make("p", {}, "Asking again in ", left, make("span", { class: "unseen" }, `${seconds} seconds`), "."),
    );
    showSeconds();
    this.#timer = setInterval(() => {
      seconds -= 1;
      if (seconds > 0) return void showSeconds();
      const tries = this.#tries + 1;
      this.#empty();
      again(); // which begins by clearing this notice
      this.#tries = tries;
    }, 1000);
  }
}
