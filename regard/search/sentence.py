"""One source while it is searched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from regard.errors import make_nan_error
from regard.models.hypothesis import Floats, Hypothesis
from regard.search.ranking import Scorer
from regard.search.trail import Backpointers
from regard.special_tokens import EOS


@dataclass
class SentenceState:
    """One source, how its hypotheses came about, and what was found."""

    index: int  # among all that are searched together
    source_length: int
    max_length: int  # tokens that a target may have, EOS included
    backpointers: Backpointers = field(default_factory=Backpointers)
    completed: list[Hypothesis] = field(default_factory=list)
    truncated: list[Hypothesis] = field(default_factory=list)
    is_finished: bool = False

    def rank_hypotheses(self) -> list[Hypothesis]:
        """The best first; those that were cut off only where none ended."""
        return sort_by_score(self.completed or self.truncated)

    def record_step(
        self,
        log_probs: Sequence[float],
        parents: Sequence[int],
        tokens: Sequence[int],
        attention: Floats | None,
        can_stop: Callable[[SentenceState, float, Scorer], bool],
        scorer: Scorer,
    ) -> None:
        """One step on: takes up what ends here, and knows whether that was all.

        Of each row that was chosen its log-probability, the row that it extends and the token it extends it by; what
        the rows before looked at for it is `look`.
        """
        backpointers, step = self.backpointers, len(self.backpointers.parents) + 1
        backpointers.record_attention(attention)
        if math.isnan(sum(log_probs)):
            raise make_nan_error(step)
        at_max_length = step >= self.max_length
        rows = zip(log_probs, parents, tokens, strict=True)
        # At most steps nothing ends, and there are as many of these as sentences times steps.
        best_open = (
            self._collect_completed(rows, at_max_length, scorer) if at_max_length or EOS in tokens else max(log_probs)
        )
        self.is_finished = best_open == -math.inf or can_stop(self, best_open, scorer)
        backpointers.record_step(parents, tokens)

    def _collect_completed(self, rows: Iterable[tuple[float, int, int]], at_max_length: bool, scorer: Scorer) -> float:
        """Takes up the rows that end, at the last step all of them; the log-probability of the best that does not."""
        best_open = -math.inf
        for log_prob, row, token in rows:
            if log_prob == -math.inf:
                continue
            if token != EOS and not at_max_length:
                best_open = max(best_open, log_prob)
                continue
            path, attention = self.backpointers.backtrack(row, token, self.source_length)
            found = scorer.score(path, log_prob, attention)
            (self.completed if token == EOS else self.truncated).append(found)
        return best_open


def sort_by_score(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """The best first; among equals in the order given."""
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


def make_sentence_states(
    lengths: Tensor, max_length: int | None, min_length: int, extra_lengths: Sequence[int], first_index: int = 0
) -> list[SentenceState]:
    """The sources of a batch before a search; `more` are tokens of each target that are given anyway."""
    sizes = lengths.tolist()
    max_lengths = max_target_lengths(sizes, max_length, min_length, extra_lengths)
    return [SentenceState(index, *both) for index, both in enumerate(zip(sizes, max_lengths, strict=True), first_index)]


def max_target_lengths(
    lengths: Sequence[int], max_length: int | None, min_length: int, extra_lengths: Sequence[int]
) -> list[int]:
    """The tokens that the target of each source may have, EOS included."""
    if max_length is not None and max_length < max(1, min_length):
        raise ValueError(f"max_length must be at least 1 and min_length: {max_length}, {min_length}")
    return [
        max_length or max(2 * length + 10 + extra, 2 * min_length)
        for length, extra in zip(lengths, extra_lengths, strict=True)
    ]
