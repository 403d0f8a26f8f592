"""Which labels were taken for which, and the figures that follow from it. All of them in percent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class LabelScores(NamedTuple):
    """How well one label is told from the others."""

    texts: int  # that have it
    precision: float
    recall: float
    f1: float


class ConfusionMatrix(NamedTuple):
    """How often each label was chosen where each was right."""

    counts: Mapping[tuple[int, int], int]  # (right, chosen)

    @classmethod
    def from_labels(cls, gold: Sequence[int], predicted: Sequence[int]) -> ConfusionMatrix:
        """Counts the choices."""
        return cls(Counter(zip(gold, predicted, strict=True)))

    @property
    def labels(self) -> list[int]:
        """Those that were right or chosen somewhere."""
        return sorted({label for pair in self.counts for label in pair})

    @property
    def rows_by_gold_label(self) -> dict[int, dict[int, int]]:
        """For each label that was right somewhere, how often each was chosen; those that never were are left out."""
        rights = sorted({right for right, _ in self.counts})
        return {
            one: {other: self.counts[one, other] for other in self.labels if (one, other) in self.counts}
            for one in rights
        }

    @property
    def accuracy(self) -> float:
        """The share of right choices."""
        return _percent(
            sum(count for (right, chosen), count in self.counts.items() if right == chosen), self.num_examples
        )

    @property
    def num_examples(self) -> int:
        """The number of choices."""
        return sum(self.counts.values())

    @property
    def macro_f1(self) -> float:
        """The mean of the labels' F1: a rare label counts as much as a frequent one."""
        every = [self.compute_label_scores(label).f1 for label in self.labels]
        return sum(every) / max(1, len(every))

    def compute_label_scores(self, label: int) -> LabelScores:
        """Those of one label; what would be a share of nothing is 0."""
        both = self.counts.get((label, label), 0)
        right = sum(count for (one, _), count in self.counts.items() if one == label)
        chosen = sum(count for (_, one), count in self.counts.items() if one == label)
        return LabelScores(right, _percent(both, chosen), _percent(both, right), _percent(2 * both, right + chosen))


def _percent(count: int, total: int) -> float:
    """A share of so many."""
    return 100 * count / total if total else 0.0
