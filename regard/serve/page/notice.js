/** Says that something went wrong, and when or how to try again. */

import { Refused } from "./api.js";
import { button, make } from "./dom.js";

export class Notice {
  #timer = 0;

  /**
   * @param {HTMLElement} place
   */
  constructor(place) {
    this.place = place;
  }

  /** Nothing is wrong any more. */
  clear() {
    clearInterval(this.#timer);
    this.place.replaceChildren();
  }

  /**
   * An error; where the server says when to come again, it is asked again then.
   * @param {unknown} error
   * @param {() => void} again
   */
  show(error, again) {
    this.clear();
    if (!(error instanceof Refused)) throw error;
    this.place.append(make("p", {}, error.message));
    if (error.wait !== null) this.#count(error.wait, again);
    else if (error.status === 0 || error.status >= 500)
      this.place.append(button("Try again", again, { class: "quiet" }));
  }

  /**
   * Counts down; told once to those who hear the page, shown to those who see it.
   * @param {number} seconds
   * @param {() => void} again
   */
  #count(seconds, again) {
    const left = make("span", { class: "wait", "aria-hidden": "true" });
    const tell = () => (left.textContent = `${seconds} s`);
    this.place.append(
      make("p", {}, "Asking again in ", left, make("span", { class: "unseen" }, `${seconds} seconds`), "."),
    );
    tell();
    this.#timer = setInterval(() => {
      seconds -= 1;
      if (seconds > 0) return void tell();
      this.clear();
      again();
    }, 1000);
  }
}
