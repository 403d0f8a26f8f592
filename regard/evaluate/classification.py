"""Classification metrics: confusion matrix, accuracy, precision, recall and F1, all in percent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class LabelScores(NamedTuple):
    """Precision, recall and F1 of one label."""

    texts: int  # number of texts with this gold label
    precision: float
    recall: float
    f1: float


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
        gold_labels = sorted({gold for gold, _ in self.counts})
        return {
            gold: {label: self.counts[gold, label] for label in self.labels if (gold, label) in self.counts}
            for gold in gold_labels
        }

    @property
    def accuracy(self) -> float:
        """Fraction of correct predictions, in percent."""
        num_correct = sum(count for (gold, predicted), count in self.counts.items() if gold == predicted)
        return _percent(num_correct, self.num_examples)

    @property
    def num_examples(self) -> int:
        """Number of predictions."""
        return sum(self.counts.values())

    @property
    def macro_f1(self) -> float:
        """Unweighted mean of the labels' F1: a rare label counts as much as a frequent one."""
        scores = [self.compute_label_scores(label).f1 for label in self.labels]
        return sum(scores) / max(1, len(scores))

    def compute_label_scores(self, label: int) -> LabelScores:
        """Return precision, recall and F1 of one label; a fraction with denominator 0 is 0."""
        correct = self.counts.get((label, label), 0)
        gold = sum(count for (gold_label, _), count in self.counts.items() if gold_label == label)
        predicted = sum(count for (_, predicted_label), count in self.counts.items() if predicted_label == label)
        f1 = _percent(2 * correct, gold + predicted)
        return LabelScores(gold, _percent(correct, predicted), _percent(correct, gold), f1)


def _percent(count: int, total: int) -> float:
    return 100 * count / total if total else 0.0
