/** Asks the service; whatever goes wrong is one kind of error. */

import { key } from "./key.js";

/** An answer that says no, or no answer at all. */
export class Refused extends Error {
  /**
   * @param {string} text
   * @param {number} status 0: there was no answer
   * @param {number | null} wait seconds after which it may be asked again
   */
  constructor(text, status, wait = null) {
    super(text);
    this.status = status;
    this.wait = wait;
  }
}

/**
 * @typedef {{code: string, name: string}} Named
 * @typedef {{code: string, name: string, targets: string[]}} Language
 * @typedef {{name: string, source: Named, target: Named, recipe: string | null, parameters: number | null,
 *   order: string[], attention: boolean, heads: number | null, layers: number | null,
 *   scores: {bleu: number | null}, steps: number, finished: boolean}} Model
 * @typedef {{text: string, source: string, target: string, model: string}} Asked
 * @typedef {{source: string[], target: string[], weights: number[][],
 *   tokens: {source: string[], target: string[], weights: number[][] | null}}} Alignment
 * @typedef {{translatedText: string, detectedLanguage?: {confidence: number, language: string},
 *   alternatives?: string[], alignment?: Alignment | null}} Translated
 * @typedef {{token: string, candidates: {token: string, probability: number}[],
 *   beam: {text: string, token: string, log_prob: number, ended: boolean}[], weights: number[] | null,
 *   heads: Record<string, number[]>, window: [number, number] | null, context: number[] | null,
 *   state: number[] | null, attentional: number[] | null}} Step
 * @typedef {{model: string, order: string[], source: string[], text: string, steps: Step[]}} Trace
 * @typedef {{kind: string, step: number, loss: number | null, bleu?: number | null}} Row
 */

const WORST = "The server cannot be reached.";

/**
 * One request; the answer is not read yet.
 * @param {string} path
 * @param {object | null} body what to post; null: nothing is posted
 * @param {AbortSignal} [signal]
 */
export async function send(path, body = null, signal = undefined) {
  const headers = key() ? { Authorization: `Bearer ${key()}` } : {};
  const posted = body && {
    method: "POST",
    headers: { ...headers, "Content-Type": "application/json" },
    body: JSON.stringify(body),
  };
  const answer = await whole(fetch(path, { headers, ...posted, signal }), signal);
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

/**
 * What an answer that says no has to say.
 * @param {Response} answer
 */
async function refusal(answer) {
  const said = await answer.json().catch(() => null);
  const text = typeof said?.error === "string" ? said.error : `The server answered ${answer.status}.`;
  const wait = Number.parseInt(answer.headers.get("Retry-After") ?? "", 10);
  return new Refused(text, answer.status, Number.isNaN(wait) ? null : wait);
}

/** @param {string} path @param {object | null} [body] @param {AbortSignal} [signal] */
async function json(path, body = null, signal = undefined) {
  const answer = await send(path, body, signal);
  return whole(answer.json(), signal);
}

/**
 * What is still to be read of an answer; where it breaks off, there was none.
 * @template T
 * @param {Promise<T>} reading
 * @param {AbortSignal} [signal]
 */
export async function whole(reading, signal = undefined) {
  try {
    return await reading;
  } catch (error) {
    throw signal?.aborted ? error : new Refused(WORST, 0);
  }
}

/** @returns {Promise<Language[]>} */
export const languages = () => json("languages");

/** @returns {Promise<Model[]>} */
export const models = async () => (await json("v1/models")).models;

/** @returns {Promise<{apiKeys: boolean, keyRequired: boolean, charLimit: number, frontendTimeout: number, beam: number,
 *   language: {source: Named, target: Named}}>} */
export const settings = () => json("frontend/settings");

/**
 * A translation.
 * @param {Asked} asked
 * @param {{alternatives?: number, alignment?: boolean}} more
 * @param {AbortSignal} signal
 * @returns {Promise<Translated>}
 */
export function translate({ text, ...asked }, more, signal) {
  return json("translate", { q: text, ...asked, ...more }, signal);
}

/**
 * One decoding, step by step.
 * @param {Asked} asked
 * @param {number} beam
 * @param {AbortSignal} signal
 * @returns {Promise<Trace>}
 */
export function trace({ text, ...asked }, beam, signal) {
  return json("v1/trace", { q: text, ...asked, beam }, signal);
}

/**
 * What was measured in training behind a step.
 * @param {string} model
 * @param {number} after
 * @param {AbortSignal} signal
 * @returns {Promise<{rows: Row[], finished: boolean}>}
 */
export function curves(model, after, signal) {
  return json(`v1/models/${encodeURIComponent(model)}/curves?after=${after}`, null, signal);
}

/** The service's own description. @returns {Promise<Record<string, any>>} */
export const description = () => json("openapi.json");
