"""One source while it is searched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from regard.errors import damaged
from regard.models.hypothesis import Floats, Hypothesis
from regard.search.ranking import Ranking
from regard.search.trail import Trail
from regard.symbols import EOS


@dataclass
class Sentence:
    """One source, how its hypotheses came about, and what was found."""

    index: int  # among all that are searched together
    length: int
    limit: int  # tokens that a target may have, EOS included
    trail: Trail = field(default_factory=Trail)
    ended: list[Hypothesis] = field(default_factory=list)
    cut: list[Hypothesis] = field(default_factory=list)
    done: bool = False

    def best(self) -> list[Hypothesis]:
        """The best first; those that were cut off only where none ended."""
        return ranked(self.ended or self.cut)

    def harvest(
        self,
        log_probs: Sequence[float],
        parents: Sequence[int],
        tokens: Sequence[int],
        look: Floats | None,
        settled: Callable[[Sentence, float, Ranking], bool],
        ranking: Ranking,
    ) -> None:
        """One step on: takes up what ends here, and knows whether that was all.

        Of each row that was chosen its log-probability, the row that it extends and the token it extends it by; what
        the rows before looked at for it is `look`.
        """
        trail, step = self.trail, len(self.trail.parents) + 1
        trail.look(look)
        if math.isnan(sum(log_probs)):
            raise damaged(step)
        last = step >= self.limit
        rows = zip(log_probs, parents, tokens, strict=True)
        # At most steps nothing ends, and there are as many of these as sentences times steps.
        best_open = self.reap(rows, last, ranking) if last or EOS in tokens else max(log_probs)
        self.done = best_open == -math.inf or settled(self, best_open, ranking)
        trail.go(parents, tokens)

    def reap(self, rows: Iterable[tuple[float, int, int]], last: bool, ranking: Ranking) -> float:
        """Takes up the rows that end, at the last step all of them; the log-probability of the best that does not."""
        best_open = -math.inf
        for log_prob, row, token in rows:
            if log_prob == -math.inf:
                continue
            if token != EOS and not last:
                best_open = max(best_open, log_prob)
                continue
            path, attention = self.trail.back(row, token, self.length)
            found = ranking.hypothesis(path, log_prob, attention)
            (self.ended if token == EOS else self.cut).append(found)
        return best_open


def ranked(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """The best first; among equals in the order given."""
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


def unsearched(
    lengths: Tensor, max_length: int | None, min_length: int, more: Sequence[int], first: int = 0
) -> list[Sentence]:
    """The sources of a batch before a search; `more` are tokens of each target that are given anyway."""
    sizes = lengths.tolist()
    most = limits(sizes, max_length, min_length, more)
    return [Sentence(index, *both) for index, both in enumerate(zip(sizes, most, strict=True), first)]


def limits(lengths: Sequence[int], max_length: int | None, min_length: int, more: Sequence[int]) -> list[int]:
    """The tokens that the target of each source may have, EOS included."""
    if max_length is not None and max_length < max(1, min_length):
        raise ValueError(f"max_length must be at least 1 and min_length: {max_length}, {min_length}")
    return [
        max_length or max(2 * length + 10 + extra, 2 * min_length) for length, extra in zip(lengths, more, strict=True)
    ]
