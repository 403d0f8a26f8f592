/** What one does with weights: put them into words, turn them round. */

import { isolate } from "./dom.js";

const LEAST = 0.05; // smaller weights are not listed

/** @param {number} weight */
export const percent = (weight) => `${Math.round(100 * weight)} %`;

/** @param {number[][]} matrix @param {number} column */
export const column = (matrix, column) => matrix.map((row) => row[column]);

/** The place of the greatest number; -1 where there is none. @param {number[]} weights */
export const findStrongest = (weights) =>
  weights.reduce((best, weight, place) => (weight > (weights[best] ?? 0) ? place : best), -1);

/** Whether a weight is large enough to be shown as a number. @param {number} weight */
export const isVisible = (weight) => weight >= LEAST;

/**
 * The most attended words, as a text.
 * @param {string[]} words
 * @param {number[]} weights
 * @param {number} [most]
 */
export function describeWeights(words, weights, most = 3) {
  const ranked = weights.map((weight, place) => ({ weight, word: words[place] })).sort((a, b) => b.weight - a.weight);
  const kept = ranked.filter(({ weight }) => isVisible(weight)).slice(0, most);
  return kept.length
    ? kept.map(({ word, weight }) => `${isolate(word)} ${percent(weight)}`).join(", ")
    : "no word in particular";
}
