"""The state of one source during a search: backpointers, finished and truncated hypotheses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor

from regard.errors import make_nan_error
from regard.models.hypothesis import Floats, Hypothesis
from regard.search.scorer import Scorer
from regard.special_tokens import EOS


class Selection(NamedTuple):
    """The continuations selected at a step for each of A sentences; an unused slot has log-probability -inf."""

    log_probs: Tensor  # (A, beam), best first; of the whole hypothesis
    parents: Tensor  # (A, beam): row of the hypothesis that each extends
    tokens: Tensor  # (A, beam): token that it is extended by


@dataclass
class Backpointers:
    """Parents, tokens and attention of every step, on the host; rows are numbered within their sentence."""

    parents: list[Sequence[int]] = field(default_factory=list)  # row at step t -> row at step t-1
    tokens: list[Sequence[int]] = field(default_factory=list)  # row at step t -> its newest token
    attention: list[Floats] = field(default_factory=list)  # (rows, S) at step t: attention for the token after it

    def backtrack(self, row: int, token: int, source_length: int) -> tuple[list[int], Floats | None]:
        """Return tokens and attention of the hypothesis that extends `row` of the last step by `token`."""
        tokens, attention = [token], []
        for step in range(len(self.parents), -1, -1):
            if self.attention:
                attention.append(self.attention[step][row, :source_length])
            if step:
                tokens.append(self.tokens[step - 1][row])
                row = self.parents[step - 1][row]
        return tokens[::-1], np.stack(attention[::-1]) if attention else None


@dataclass
class SentenceState:
    """One source while it is searched."""

    index: int  # in the order in which sources were added to the search
    source_length: int
    max_length: int  # of its target, EOS included
    backpointers: Backpointers = field(default_factory=Backpointers)
    finished: list[Hypothesis] = field(default_factory=list)
    truncated: list[Hypothesis] = field(default_factory=list)  # at max_length
    done: bool = False

    def rank_hypotheses(self) -> list[Hypothesis]:
        """Return the hypotheses, best first; truncated ones only if none finished."""
        return sort_by_score(self.finished or self.truncated)

    def collect(
        self,
        log_probs: Sequence[float],
        parents: Sequence[int],
        tokens: Sequence[int],
        attention: Floats | None,
        scorer: Scorer,
    ) -> float:
        """Record one step and collect the hypotheses that end with it; return the best log-probability still active.

        `log_probs`, `parents` and `tokens` are one row of a `Selection`; `attention` (rows, S) is that of the parents.
        """
        step = len(self.backpointers.parents) + 1
        if attention is not None:
            self.backpointers.attention.append(attention)
        if math.isnan(sum(log_probs)):
            raise make_nan_error(step)
        is_last = step >= self.max_length
        # At most steps nothing ends, and this runs once for each sentence and step.
        if is_last or EOS in tokens:
            best_active = self._collect_rows(zip(log_probs, parents, tokens, strict=True), is_last, scorer)
        else:
            best_active = max(log_probs)
        self.backpointers.parents.append(parents)
        self.backpointers.tokens.append(tokens)
        return best_active

    def _collect_rows(self, rows: Iterable[tuple[float, int, int]], is_last: bool, scorer: Scorer) -> float:
        best_active = -math.inf
        for log_prob, row, token in rows:
            if log_prob == -math.inf:
                continue
            if token != EOS and not is_last:
                best_active = max(best_active, log_prob)
                continue
            path, attention = self.backpointers.backtrack(row, token, self.source_length)
            hypothesis = scorer.score(path, log_prob, attention)
            (self.finished if token == EOS else self.truncated).append(hypothesis)
        return best_active


def sort_by_score(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Return the hypotheses, best first; equal ones keep their order."""
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)
