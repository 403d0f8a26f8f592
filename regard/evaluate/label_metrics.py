"""Metrics of labels, in percent: confusion matrix, accuracy and F1 of texts, and F1 of chunks as by conlleval."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


def _percent(count: int, total: int) -> float:
    return 100 * count / total if total else 0.0


class MatchCounts(NamedTuple):
    """Number of gold, predicted and correct labels or chunks of one type; a fraction with denominator 0 is 0."""

    gold: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """Fraction of the predicted ones that are correct, in percent."""
        return _percent(self.correct, self.predicted)

    @property
    def recall(self) -> float:
        """Fraction of the gold ones that were predicted, in percent."""
        return _percent(self.correct, self.gold)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, in percent."""
        return _percent(2 * self.correct, self.gold + self.predicted)

    def to_dict(self) -> dict[str, float]:
        """Return precision, recall and F1."""
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1}


class ConfusionMatrix(NamedTuple):
    """Number of predictions by gold label and predicted label."""

    counts: Mapping[tuple[int, int], int]  # (gold, predicted) -> count

    @classmethod
    def from_labels(cls, gold: Sequence[int], predicted: Sequence[int]) -> ConfusionMatrix:
        """Count pairs of gold and predicted labels."""
        return cls(Counter(zip(gold, predicted, strict=True)))

    @property
    def labels(self) -> list[int]:
        """All gold and predicted labels, sorted."""
        return sorted({label for pair in self.counts for label in pair})

    @property
    def rows_by_gold_label(self) -> dict[int, dict[int, int]]:
        """For each gold label the counts of predicted labels, without those that are 0."""
        rows: dict[int, dict[int, int]] = {}
        for (gold, predicted), count in sorted(self.counts.items()):
            rows.setdefault(gold, {})[predicted] = count
        return rows

    @property
    def accuracy(self) -> float:
        """Fraction of correct predictions, in percent."""
        num_correct = sum(count for (gold, predicted), count in self.counts.items() if gold == predicted)
        return _percent(num_correct, sum(self.counts.values()))

    @property
    def macro_f1(self) -> float:
        """Unweighted mean of the labels' F1: a rare label counts as much as a frequent one."""
        scores = [self.count_matches(label).f1 for label in self.labels]
        return sum(scores) / max(1, len(scores))

    def count_matches(self, label: int) -> MatchCounts:
        """Return the number of gold, predicted and correct occurrences of one label."""
        gold = sum(count for (gold_label, _), count in self.counts.items() if gold_label == label)
        predicted = sum(count for (_, predicted_label), count in self.counts.items() if predicted_label == label)
        return MatchCounts(gold, predicted, self.counts.get((label, label), 0))


_CHUNK_LABEL = re.compile(r"[BI]-.+", re.DOTALL)


class Chunk(NamedTuple):
    """Words from `start` up to `end` (exclusive), and their chunk type."""

    kind: str
    start: int
    end: int


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


def count_chunks(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, MatchCounts]:
    """Count chunks by type, sorted; a chunk is correct if its type, start and end are."""
    counters = [Counter[str]() for _ in MatchCounts._fields]
    for pair in zip(gold, predicted, strict=True):
        in_gold, in_predicted = (set(find_chunks(labels)) for labels in pair)
        for counter, chunks in zip(counters, (in_gold, in_predicted, in_gold & in_predicted), strict=True):
            counter.update(chunk.kind for chunk in chunks)
    kinds = sorted(set().union(*counters))
    return {kind: MatchCounts(*(counter[kind] for counter in counters)) for kind in kinds}


def sum_chunk_counts(counts: Iterable[MatchCounts]) -> MatchCounts:
    """Return the sum over all chunk types."""
    return MatchCounts(*map(sum, zip(MatchCounts(0, 0, 0), *counts, strict=True)))
