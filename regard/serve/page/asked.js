/** What was asked for last, which outlives a reload. */

import { keep, kept } from "./kept.js";

const NAME = "regard-asked";

/** @param {import("./api.js").Asked} asked */
export const keepAsked = (asked) => keep(NAME, JSON.stringify(asked));

/** What this window asked for before, if it asked for anything. @returns {import("./api.js").Asked | null} */
export const keptAsked = () => JSON.parse(kept(NAME) || "null");
