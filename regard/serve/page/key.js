/** The API key of this window. */

import { keep, kept } from "./kept.js";

const NAME = "regard-key";
let held = kept(NAME);

/** The key; empty where there is none. */
export const key = () => held;

/**
 * Takes another key.
 * @param {string} value
 */
export function setKey(value) {
  held = value.trim();
  keep(NAME, held);
}
