/** The views as tabs, one at a time; the address remembers which. */

import { byId } from "./dom.js";

export class Tabs {
  /**
   * @param {string[]} names ids of the panels
   * @param {(name: string) => void} opened
   */
  constructor(names, opened) {
    this.names = names;
    this.opened = opened;
    for (const name of names) {
      byId(`tab-${name}`).addEventListener("click", () => this.open(name));
      byId(`tab-${name}`).addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.#move(event));
    }
    addEventListener("hashchange", () => this.#follow());
    this.current = names.includes(location.hash.slice(1)) ? location.hash.slice(1) : names[0];
  }

  /** Opens a tab. @param {string} name */
  open(name) {
    this.current = name;
    for (const each of this.names) {
      const chosen = each === name;
      byId(`tab-${each}`).setAttribute("aria-selected", String(chosen));
      byId(`tab-${each}`).tabIndex = chosen ? 0 : -1;
      byId(each).hidden = !chosen;
    }
    if (location.hash.slice(1) !== name) history.replaceState(null, "", `#${name}`);
    this.opened(name);
  }

  #follow() {
    const name = location.hash.slice(1);
    if (this.names.includes(name) && name !== this.current) this.open(name);
  }

  /** Arrow keys, as in every row of tabs. @param {KeyboardEvent} event */
  #move(event) {
    const count = this.names.length;
    const here = this.names.indexOf(this.current);
    const next = { ArrowRight: here + 1, ArrowLeft: here - 1 + count, Home: 0, End: count - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.open(this.names[next % count]);
    byId(`tab-${this.current}`).focus();
  }
}
