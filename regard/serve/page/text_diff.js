/** Where two translations of one sentence differ. */

/**
 * The words that two lists have in common, in order: a longest common subsequence, as pairs of places.
 * @param {string[]} left
 * @param {string[]} right
 * @returns {[number, number][]}
 */
export function common(left, right) {
  const lengths = Array.from({ length: left.length + 1 }, () => new Uint32Array(right.length + 1));
  for (let i = left.length - 1; i >= 0; i--) {
    for (let j = right.length - 1; j >= 0; j--) {
      lengths[i][j] = left[i] === right[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  /** @type {[number, number][]} */
  const pairs = [];
  for (let i = 0, j = 0; i < left.length && j < right.length;) {
    if (left[i] === right[j]) pairs.push([i++, j++]);
    else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
    else j++;
  }
  return pairs;
}

/**
 * Total variation distance of two rows of attention weights: half of the sum of all differences, 0 for equal rows, 1 for
 * rows with nothing in common.
 * Weight that is on no word, such as that on the end of the sentence, counts like one more word.
 * @param {number[]} left
 * @param {number[]} right
 */
export function weightDistance(left, right) {
  const words = left.reduce((sum, weight, position) => sum + Math.abs(weight - right[position]), 0);
  return (words + Math.abs(sum(left) - sum(right))) / 2;
}

/** @param {number[]} numbers */
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
