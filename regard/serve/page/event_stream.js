/** Server-sent events over fetch: EventSource cannot post. */

import { send, readAnswer } from "./api.js";

/**
 * The events of a translation that is being written.
 * @param {import("./api.js").TextRequest} asked
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<{kind: string, data: any}>}
 */
export async function* streamWords({ text, ...asked }, signal) {
  const answer = await send("v1/translate/stream", { q: text, ...asked }, signal);
  let rest = "";
  const body = /** @type {ReadableStream<BufferSource>} */ (answer.body);
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const next = () => readAnswer(reader.read(), signal);
  for (let part = await next(); !part.done; part = await next()) {
    const blocks = (rest + part.value).split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) yield event(block);
  }
}

/** One event. @param {string} block */
function event(block) {
  const fields = new Map(block.split("\n").map((line) => /** @type {[string, string]} */ (split(line))));
  return { kind: fields.get("event") ?? "message", data: JSON.parse(fields.get("data") ?? "null") };
}

/** A field's name and its value. @param {string} line */
function split(line) {
  const colon = line.indexOf(":");
  return [line.slice(0, colon), line.slice(colon + 1).trimStart()];
}
