"""Chunk precision, recall and F1 of IOB labels (`B-NP`, `I-NP`), counted as conlleval does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_CHUNK_LABEL = re.compile(r"[BI]-.+", re.DOTALL)


class Chunk(NamedTuple):
    """Words from `start` up to `end` (exclusive), and their chunk type."""

    kind: str
    start: int
    end: int


class ChunkCounts(NamedTuple):
    """Number of gold, predicted and correct chunks."""

    gold: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """Fraction of predicted chunks that are correct, in percent."""
        return 100.0 * self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Fraction of gold chunks that were predicted, in percent."""
        return 100.0 * self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, in percent."""
        return 200.0 * self.correct / (self.gold + self.predicted) if self.correct else 0.0


def are_chunk_labels(labels: Iterable[str]) -> bool:
    """Return True if labels mark chunks: all are O, B-… or I-…, and not all are O."""
    chunk_labels = set(labels) - {"O"}
    return bool(chunk_labels) and all(map(_CHUNK_LABEL.fullmatch, chunk_labels))


def find_chunks(labels: Sequence[str]) -> list[Chunk]:
    """Return the chunks of a sentence. B begins one, and so does I after O, after another type, and at the start.

    IOB1 and IOB2 are therefore read alike, and invalid label sequences still count for the chunks that they mark.
    """
    chunks: list[Chunk] = []
    for index, label in enumerate(labels):
        tag, _, kind = label.partition("-")
        if tag == "O":
            continue
        last = chunks[-1] if chunks else None
        if tag == "I" and last is not None and last.end == index and last.kind == kind:
            chunks[-1] = last._replace(end=index + 1)
        else:
            chunks.append(Chunk(kind, index, index + 1))
    return chunks


def count_chunks(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, ChunkCounts]:
    """Count chunks by type, sorted; a chunk is correct if its type, start and end are."""
    num_gold: Counter[str] = Counter()
    num_predicted: Counter[str] = Counter()
    num_correct: Counter[str] = Counter()
    for gold_labels, predicted_labels in zip(gold, predicted, strict=True):
        gold_chunks, predicted_chunks = find_chunks(gold_labels), find_chunks(predicted_labels)
        num_gold.update(chunk.kind for chunk in gold_chunks)
        num_predicted.update(chunk.kind for chunk in predicted_chunks)
        num_correct.update(chunk.kind for chunk in set(gold_chunks) & set(predicted_chunks))
    return {
        kind: ChunkCounts(num_gold[kind], num_predicted[kind], num_correct[kind])
        for kind in sorted(num_gold | num_predicted)
    }


def sum_chunk_counts(counts: Iterable[ChunkCounts]) -> ChunkCounts:
    """Return the sum over all chunk types."""
    rows = list(counts)
    return ChunkCounts(*(sum(column) for column in zip(*rows, strict=True))) if rows else ChunkCounts(0, 0, 0)
