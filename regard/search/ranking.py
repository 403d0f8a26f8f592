"""What hypotheses of different lengths are ranked by (Wu et al. 2016, section 7)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from regard.models.hypothesis import Floats, Hypothesis

LengthPenalty = float | Literal["average"]
MIN_COVERAGE = 1e-6  # a source word that got no weight at all counts as one that got this much: its logarithm is finite


class Scorer(NamedTuple):
    """log p(y) / lp(y) + cp(x, y).

    lp(y) = ((5 + |y|) / 6)^length_penalty, or |y| for "average"; EOS counts in |y|.
    cp(x, y) = coverage_penalty · Σ_s log min(Σ_t a_t(s), 1), which is never more than 0.
    """

    length_penalty: LengthPenalty = 0.6
    coverage_penalty: float = 0.0

    def score(self, tokens: list[int], log_prob: float, attention: Floats | None) -> Hypothesis:
        """A hypothesis with its score."""
        score = self.normalize(log_prob, len(tokens))
        if self.coverage_penalty:
            if attention is None:
                raise ValueError("a coverage penalty needs a model with attention")
            coverage = np.clip(attention.sum(0), MIN_COVERAGE, 1)
            score += self.coverage_penalty * float(np.log(coverage).sum())
        return Hypothesis(tokens, log_prob, score, attention)

    def normalize(self, log_prob: float, length: int) -> float:
        """log p(y) / lp(y)."""
        return log_prob / self.length_divisor(length)

    def length_divisor(self, length: int) -> float:
        """lp(y)."""
        if self.length_penalty == "average":
            return length
        return float(((5 + length) / 6) ** self.length_penalty)

    def upper_bound(self, log_prob: float, max_length: int) -> float:
        """No continuation of a hypothesis scores more: its log-probability only falls, and lp has no hills."""
        return max(self.normalize(log_prob, length) for length in (1, max_length))
