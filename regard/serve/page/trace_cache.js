/** Decodings, step by step; the last one is kept, for several views ask for it. */

import { trace } from "./api.js";

export const LONGEST = 400; // maximum characters of a line that the service traces
export const WIDEST = 12; // maximum beam that the service traces
/** @type {{key: string, trace: import("./api.js").Trace} | null} */
let last = null;

/**
 * One decoding.
 * @param {import("./api.js").TextRequest} asked
 * @param {number} beam
 * @param {AbortSignal} signal
 */
export async function loadTrace(asked, beam, signal) {
  const key = JSON.stringify([asked, beam]);
  if (last?.key === key) return last.trace;
  const found = await trace(asked, beam, signal);
  last = { key, trace: found };
  return found;
}
