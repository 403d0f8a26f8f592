/** Of several requests the newest counts. */

export class LatestRequest {
  /** @type {AbortController | null} */
  #controller = null;

  /** Breaks off what is under way and begins anew. */
  start() {
    this.stop();
    this.#controller = new AbortController();
    return this.#controller.signal;
  }

  /** Breaks off what is under way. */
  stop() {
    this.#controller?.abort();
    this.#controller = null;
  }
}

/**
 * Something that is done once nobody has asked for it again for a while.
 * @param {() => void} work
 * @param {number} milliseconds
 */
export function debounce(work, milliseconds) {
  let timer = 0;
  return {
    later() {
      clearTimeout(timer);
      timer = setTimeout(work, milliseconds);
    },
    now() {
      clearTimeout(timer);
      work();
    },
    never() {
      clearTimeout(timer);
    },
  };
}
