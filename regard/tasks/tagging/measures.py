"""How good tags are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.evaluate import are_chunks, count_chunks, together

Labels = Sequence[str]


def measure(labels: Labels) -> str:
    """What counts for a model that chooses from these labels."""
    return "f1" if are_chunks(labels) else "accuracy"


def accuracy(gold: Sequence[Labels], found: Sequence[Labels]) -> float:
    """Words with the right label, in per cent."""
    pairs = [pair for sides in zip(gold, found, strict=True) for pair in zip(*sides, strict=True)]
    return 100.0 * sum(right == made for right, made in pairs) / max(1, len(pairs))


def figures(gold: Sequence[Labels], found: Sequence[Labels], labels: Labels) -> dict[str, Any]:
    """Accuracy, and where a model's labels mark chunks precision, recall and F1, that of each kind as well."""
    measured: dict[str, Any] = {"accuracy": accuracy(gold, found)}
    if measure(labels) == "f1":
        by_kind = count_chunks(gold, found)
        whole = together(by_kind.values())
        measured |= {"precision": whole.precision, "recall": whole.recall, "f1": whole.f1}
        measured["f1_by_kind"] = {kind: counts.f1 for kind, counts in by_kind.items()}
    return measured
