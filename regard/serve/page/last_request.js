/** What was asked for last, which outlives a reload. */

import { saveItem, loadItem } from "./session_store.js";

const NAME = "regard-asked";

/** @param {import("./api.js").TextRequest} asked */
export const saveLastRequest = (asked) => saveItem(NAME, JSON.stringify(asked));

/** What this window asked for before, if it asked for anything. @returns {import("./api.js").TextRequest | null} */
export const loadLastRequest = () => JSON.parse(loadItem(NAME) || "null");
