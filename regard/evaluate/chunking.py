"""Chunks that labels like `B-NP` and `I-NP` mark, counted as conlleval does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_CHUNK_LABEL = re.compile(r"[BI]-.+", re.DOTALL)


class Chunk(NamedTuple):
    """Words from `start` up to `end`, and what they are together."""

    kind: str
    start: int
    end: int


class ChunkCounts(NamedTuple):
    """How many chunks there are, were found, and both."""

    gold: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """Of what was found, what is right; in per cent."""
        return 100.0 * self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Of what there is, what was found; in per cent."""
        return 100.0 * self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of the two."""
        return 200.0 * self.correct / (self.gold + self.predicted) if self.correct else 0.0


def are_chunk_labels(labels: Iterable[str]) -> bool:
    """Whether labels mark chunks: all are O, B-… or I-…, and not all are O."""
    known = set(labels) - {"O"}
    return bool(known) and all(map(_CHUNK_LABEL.fullmatch, known))


def find_chunks(labels: Sequence[str]) -> list[Chunk]:
    """The chunks of a sentence. B begins one, and so does I behind O, behind another kind, and at the beginning.

    So IOB1 and IOB2 are read alike, and labels that break their own rules count for what they mark.
    """
    found: list[Chunk] = []
    for index, label in enumerate(labels):
        tag, _, kind = label.partition("-")
        if tag == "O":
            continue
        last = found[-1] if found else None
        if tag == "I" and last is not None and last.end == index and last.kind == kind:
            found[-1] = last._replace(end=index + 1)
        else:
            found.append(Chunk(kind, index, index + 1))
    return found


def count_chunks(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, ChunkCounts]:
    """By kind, in the order of the alphabet: a chunk is right where kind, beginning and end are."""
    there: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    both: Counter[str] = Counter()
    for right, made in zip(gold, predicted, strict=True):
        first, second = find_chunks(right), find_chunks(made)
        there.update(chunk.kind for chunk in first)
        answered.update(chunk.kind for chunk in second)
        both.update(chunk.kind for chunk in set(first) & set(second))
    return {kind: ChunkCounts(there[kind], answered[kind], both[kind]) for kind in sorted(there | answered)}


def sum_chunk_counts(counts: Iterable[ChunkCounts]) -> ChunkCounts:
    """Those of all kinds."""
    some = list(counts)
    return ChunkCounts(*(sum(each) for each in zip(*some, strict=True))) if some else ChunkCounts(0, 0, 0)
