"""Numbers that a model gave for a series."""

from __future__ import annotations

from typing import Any, NamedTuple

from regard.plot import Line, Overlay, Track
from regard.tasks.regression.files import Table
from regard.tasks.task import Asked

DIGITS = 6  # of a number that is written down


class Numbers(NamedTuple):
    """What was found for each step."""

    outputs: Table  # S,O

    def line(self) -> str:
        """The steps with spaces between; several numbers of a step have commas between."""
        return written(self.outputs)

    def document(self) -> dict[str, Any]:
        """The numbers, a list for each step."""
        return {"outputs": self.outputs.tolist()}

    def looks(self) -> list[Line]:
        """Nothing: there is no attention."""
        return []

    def overlay(self) -> Overlay | None:
        """Nothing: there is no image."""
        return None


def written(table: Table) -> str:
    """Numbers over time in one line."""
    return " ".join(",".join(f"{one:.{DIGITS}g}" for one in step) for step in table.tolist())


def tracks(asked: Asked, made: Numbers) -> list[Track]:
    """What is right and what the model gave, over time, for each number of a step."""
    return compared(asked.right, made.outputs)


def compared(right: Table, made: Table) -> list[Track]:
    """Both, column by column."""
    return [Track(right[:, column].tolist(), made[:, column].tolist()) for column in range(right.shape[1])]
