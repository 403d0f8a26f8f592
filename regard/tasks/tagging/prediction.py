"""A sentence with the tags that a model gave it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from regard.plot import Line
from regard.tasks.tagging.columns import Row


class Tags(NamedTuple):
    """The words of a sentence, the tag of each, and how probable the model holds it to be."""

    rows: tuple[Row, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]

    def line(self) -> str:
        """`word/TAG`, with a space between."""
        return written(self.rows, self.tags)

    def document(self) -> dict[str, Any]:
        """Words, tags and probabilities."""
        words = [row[0] for row in self.rows]
        return {"words": words, "tags": list(self.tags), "probabilities": list(self.probabilities)}

    def looks(self) -> list[Line]:
        """Nothing: there is no attention."""
        return []

    def overlay(self) -> None:
        """There is no image."""
        return


def written(rows: Sequence[Row], labels: Sequence[str]) -> str:
    """Words with their labels in one line."""
    return " ".join(f"{row[0]}/{label}" for row, label in zip(rows, labels, strict=True))
