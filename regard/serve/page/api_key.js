/** The API key of this window. */

import { saveItem, loadItem } from "./session_store.js";

const NAME = "regard-key";
let held = loadItem(NAME);

/** The key; empty where there is none. */
export const apiKey = () => held;

/**
 * Takes another key.
 * @param {string} value
 */
export function setApiKey(value) {
  held = value.trim();
  saveItem(NAME, held);
}
