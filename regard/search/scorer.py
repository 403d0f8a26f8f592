"""Length and coverage penalties, by which hypotheses of different lengths are ranked (Wu et al. 2016, section 7)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from regard.models.hypothesis import Floats, Hypothesis, LengthPenalty

MIN_COVERAGE = 1e-6  # lower bound of a source word's coverage: the logarithm of 0 is not finite


class Scorer(NamedTuple):
    """score(x, y) = log p(y|x) / lp(y) + cp(x, y).

    lp(y) = ((5 + |y|) / 6)^length_penalty, or |y| for "average"; EOS counts in |y|.
    cp(x, y) = coverage_penalty · Σ_s log min(Σ_t a_t(s), 1), which is at most 0.
    """

    length_penalty: LengthPenalty = 0.6
    coverage_penalty: float = 0.0

    def score(self, tokens: list[int], log_prob: float, attention: Floats | None) -> Hypothesis:
        """Return the hypothesis with its score."""
        score = log_prob / self.length_divisor(len(tokens))
        if self.coverage_penalty:
            if attention is None:
                raise ValueError("a coverage penalty needs a model with attention")
            coverage = np.clip(attention.sum(0), MIN_COVERAGE, 1)
            score += self.coverage_penalty * float(np.log(coverage).sum())
        return Hypothesis(tokens, log_prob, score, attention)

    def length_divisor(self, length: int) -> float:
        """Return lp(y) for |y| = `length`."""
        if self.length_penalty == "average":
            return length
        return float(((5 + length) / 6) ** self.length_penalty)

    def upper_bound(self, log_prob: float, max_length: int) -> float:
        """Return a score that no continuation of a hypothesis exceeds.

        log p can only fall and lp is monotonic, so the maximum is at length 1 or at `max_length`; cp is at most 0.
        """
        return max(log_prob / self.length_divisor(length) for length in (1, max_length))
