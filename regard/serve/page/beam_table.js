/** The hypotheses that are kept open in a step. */

import { make } from "./dom.js";
import { formatNumber, table } from "./data_table.js";

/** @param {import("./api.js").Step} step */
export function drawBeamTable(step) {
  const rows = step.beam.map(({ text, token, log_prob, ended }, place) => [
    String(place + 1),
    text || "–",
    token,
    formatNumber(log_prob, 2),
    ended ? "ended" : "open",
  ]);
  const heads = ["Rank", "Hypothesis", "Last token", "log p", "State"];
  return make("section", { class: "beam" }, make("h3", {}, "Beam"), table("Hypotheses of the beam", heads, rows));
}
