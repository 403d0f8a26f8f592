/** Asks the service; whatever goes wrong is one kind of error. */

import { apiKey } from "./api_key.js";

/** An answer that says no, or no answer at all. */
export class RequestError extends Error {
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

  /** Whether nobody was there to answer; a proxy may have said so. */
  get away() {
    return [0, 502, 503, 504].includes(this.status);
  }
}

/**
 * @typedef {{code: string, name: string}} Named
 * @typedef {{code: string, name: string, targets: string[]}} Language
 * @typedef {{name: string, source: Named, target: Named, recipe: string | null, parameters: number | null,
 *   order: string[], attention: boolean, heads: number | null, layers: number | null,
 *   scores: Record<string, number | null>, steps: number, finished: boolean}} Model
 * @typedef {{text: string, source: string, target: string, model: string}} TextRequest
 * @typedef {{source: string[], target: string[], weights: number[][],
 *   tokens: {source: string[], target: string[], weights: number[][] | null}}} Alignment
 * @typedef {{translatedText: string, detectedLanguage?: {confidence: number, language: string},
 *   alternatives?: string[], alignment?: Alignment | null}} Translated
 * @typedef {{token: string, candidates: {token: string, probability: number}[],
 *   beam: {text: string, token: string, log_prob: number, ended: boolean}[], weights: number[] | null,
 *   heads: Record<string, number[]>, window: [number, number] | null, context: number[] | null,
 *   state: number[] | null, attentional?: number[] | null}} Step
 * @typedef {{model: string, order: string[], pieces: number, source: string[], text: string, steps: Step[]}} Trace
 * @typedef {{name: string, task: string, recipe: string | null, parameters: number | null,
 *   scores: Record<string, number>}} Predictor
 * @typedef {{kind: string, step: number, loss: number | null, bleu?: number | null,
 *   chrf?: number | null, measure?: string}} Row
 */

const WORST = "The server cannot be reached.";
const TOO_LONG = /request \(\d+\) exceeds text limit \((\d+)\)/;

/**
 * One request; the answer is not read yet.
 * @param {string} path
 * @param {Record<string, any> | null} body what to post; null: nothing is posted
 * @param {AbortSignal} [signal]
 */
export async function send(path, body = null, signal = undefined) {
  const sent = body ? makeBody({ ...(apiKey() && { api_key: apiKey() }), ...body }) : { headers: bearer() };
  const answer = await readAnswer(fetch(path, { ...sent, signal }), signal);
  if (!answer.ok) throw await makeError(answer);
  return answer;
}

/** The key, for what has no body to carry it. @returns {Record<string, string>} */
const bearer = () => (apiKey() ? { Authorization: `Bearer ${apiKey()}` } : {});

/**
 * A body as JSON; as a form, where a file is in it.
 * @param {Record<string, any>} fields
 */
function makeBody(fields) {
  if (!Object.values(fields).some((value) => value instanceof File))
    return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(fields) };
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  return { method: "POST", body: form };
}

/**
 * What an answer that says no has to say.
 * @param {Response} answer
 */
async function makeError(answer) {
  const said = await answer.json().catch(() => null);
  const text = typeof said?.error === "string" ? rephrase(said.error) : `The server answered ${answer.status}.`;
  const wait = Number.parseInt(answer.headers.get("Retry-After") ?? "", 10);
  return new RequestError(text, answer.status, Number.isNaN(wait) ? null : wait);
}

/** What the service says to programs, for people. @param {string} error */
function rephrase(error) {
  const long = error.match(TOO_LONG);
  if (long) return tooLong(Number(long[1]));
  return error.replace(/^Invalid request: (.)/, (_, first) => first.toUpperCase());
}

/** @param {number} limit */
export function tooLong(limit) {
  return `This text is too long: up to ${limit.toLocaleString("en")} characters are taken at a time.`;
}

/** @param {string} path @param {Record<string, any> | null} [body] @param {AbortSignal} [signal] */
async function json(path, body = null, signal = undefined) {
  const answer = await send(path, body, signal);
  return readAnswer(answer.json(), signal);
}

/**
 * What is still to be read of an answer; where it breaks off, there was none.
 * @template T
 * @param {Promise<T>} reading
 * @param {AbortSignal} [signal]
 */
export async function readAnswer(reading, signal = undefined) {
  try {
    return await reading;
  } catch (error) {
    throw signal?.aborted ? error : new RequestError(WORST, 0);
  }
}

/** @returns {Promise<Language[]>} */
export const languages = () => json("languages");

/** @returns {Promise<Model[]>} */
export const models = async () => (await json("v1/models")).models;

/**
 * @typedef {{apiKeys: boolean, keyRequired: boolean, keyLink: string, charLimit: number, frontendTimeout: number,
 *   beam: number, filesTranslation: boolean, fileLimit: number, supportedFilesFormat: string[],
 *   language: {source: Named, target: Named}}} Settings
 */

/** @returns {Promise<Settings>} */
export const settings = () => json("frontend/settings");

/**
 * A translation.
 * @param {TextRequest} asked
 * @param {{alternatives?: number, alignment?: boolean}} more
 * @param {AbortSignal} signal
 * @returns {Promise<Translated>}
 */
export function translate({ text, ...asked }, more, signal) {
  return json("translate", { q: text, ...asked, ...more }, signal);
}

/**
 * A file, translated; where it can be fetched, as seen from this page: the server may not know by what name it was asked.
 * @param {{file: File, source: string, target: string}} asked
 * @param {AbortSignal} signal
 */
export async function translateFile(asked, signal) {
  const { translatedFileUrl } = await json("translate_file", asked, signal);
  return `download_file/${translatedFileUrl.split("/").pop()}`;
}

/**
 * One decoding, step by step.
 * @param {TextRequest} asked
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
 * @param {number | null} after null: all of it
 * @param {AbortSignal} signal
 * @returns {Promise<{rows: Row[], finished: boolean}>}
 */
export function curves(model, after, signal) {
  return json(`v1/models/${encodeURIComponent(model)}/curves${after === null ? "" : `?after=${after}`}`, null, signal);
}

/** The models that do something else than translate. @returns {Promise<Predictor[]>} */
export const predictors = async () => (await json("v1/predictors")).predictors;

/**
 * What one of them makes of an input.
 * @param {string} model
 * @param {any} q
 * @param {AbortSignal} signal
 * @returns {Promise<{task: string, predictions: import("./prediction_view.js").Prediction[]}>}
 */
export const predict = (model, q, signal) => json("v1/predict", { model, q }, signal);

/** The service's own description. @returns {Promise<Record<string, any>>} */
export const description = () => json("openapi.json");
