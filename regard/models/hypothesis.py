"""Search options, length limits, hypotheses, and their scores with length and coverage penalties.

The penalties follow Wu et al. 2016, section 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from regard.errors import UserError

Floats = npt.NDArray[np.float32]
LengthPenalty = float | Literal["average"]


class Hypothesis(NamedTuple):
    """A target with its scores and its attention."""

    tokens: list[int]  # EOS included, unless the target was truncated at its length limit
    log_prob: float  # sum over the tokens
    score: float  # log_prob with length and coverage penalties; hypotheses are ranked by it
    attention: Floats | None  # (len(tokens), source length); None for a model without attention


@dataclass(frozen=True)
class SearchOptions:
    """Options of a beam search, the same for all sources of a batch.

    - `beam`: hypotheses per source; 1 is greedy search.
    - `max_length`, `min_length`: target tokens, EOS included; without `max_length` see `max_lengths`.
    - `length_penalty`, `coverage_penalty`: see `Scorer`.
    - `no_repeat`: no n-gram of this length occurs twice in a target.
    - `forbid`: token sequences that no target contains.
    - `constraints`: callables like `regard.search.constraints.Constraint`.
    - `attention`: False saves time if the attention of the hypotheses is not needed.
    """

    beam: int = 5
    n_best: int = 1
    max_length: int | None = None
    min_length: int = 1
    length_penalty: LengthPenalty = 0.6
    coverage_penalty: float = 0.0
    no_repeat: int | None = None
    forbid: Sequence[Sequence[int]] = ()
    constraints: Sequence[Callable[[Tensor, Tensor, Tensor], None]] = ()
    attention: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.beam:
            raise ValueError(f"n_best must be between 1 and the beam: n_best {self.n_best}, beam {self.beam}")
        if self.max_length is not None and self.max_length < max(1, self.min_length):
            raise ValueError(f"max_length must be at least 1 and min_length: {self.max_length}, {self.min_length}")

    def max_lengths(self, source_lengths: Sequence[int], forced_tokens: Iterable[int] = repeat(0)) -> list[int]:
        """Return the maximum number of target tokens for each source, EOS included.

        That is `max_length`, or twice the source's length plus ten, plus the tokens that its target must contain
        anyway.
        """
        return [
            self.max_length or max(2 * length + 10 + forced, 2 * self.min_length)
            for length, forced in zip(source_lengths, forced_tokens, strict=False)
        ]

    @property
    def has_constraints(self) -> bool:
        """True if more than lengths restricts or ranks the targets; faster searches do not support that."""
        return bool(self.coverage_penalty or self.no_repeat is not None or self.forbid or self.constraints)


def check_sampling(temperature: float, top_k: int | None, top_p: float) -> None:
    """Raise UserError for options of sampling that are out of range."""
    if not 1e-3 <= temperature < math.inf:
        raise UserError(f"temperature must be at least 0.001, not {temperature}; for greedy search use a beam of 1")
    if top_k is not None and top_k < 1:
        raise UserError(f"top_k must be at least 1, not {top_k}")
    if not 0 < top_p <= 1:
        raise UserError(f"top_p must be more than 0 and at most 1, not {top_p}")


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
