"""Numbers with mean 0 and deviation 1, as a network likes them, and back: measured once, on the training data."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.errors import UserError
from regard.tasks.regression.files import Series, Table

FILE = "scale.json"
FAR = 1e6  # deviations, beyond which a number is as good as any other: single precision holds its square


class Scale(NamedTuple):
    """Of each column."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, tables: Sequence[Table]) -> Scale:
        """The scale of some tables together; a column in which all numbers are one is only moved."""
        every = np.concatenate(tables)
        mean, deviation = every.mean(0), every.std(0)
        flat = deviation <= 1e-9 * np.abs(mean)
        return cls(tuple(mean.tolist()), tuple(np.where(flat, 1.0, deviation).tolist()))

    def standard(self, table: Table) -> Table:
        """Numbers as a model reads them."""
        with np.errstate(over="ignore"):
            found: Table = np.clip((table - np.array(self.mean)) / np.array(self.deviation), -FAR, FAR)
        return found

    def natural(self, table: Table) -> Table:
        """Numbers as they were."""
        found: Table = table * np.array(self.deviation) + np.array(self.mean)
        return found


class Scales(NamedTuple):
    """Of what is read, and of what is to be found."""

    inputs: Scale
    targets: Scale

    @classmethod
    def learn(cls, series: Sequence[Series]) -> Scales:
        """Those of the training data."""
        return cls(
            Scale.of([one.inputs for one in series]),
            Scale.of([one.targets for one in series if one.targets is not None]),
        )

    @property
    def sizes(self) -> tuple[int, int]:
        """How many numbers a step has, of each."""
        return len(self.inputs.mean), len(self.targets.mean)

    def save(self, folder: Path) -> None:
        """Writes them into a folder."""
        document = {"inputs": self.inputs._asdict(), "targets": self.targets._asdict()}
        (folder / FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Scales:
        """Reads what `save` wrote."""
        path = folder / FILE
        if not path.is_file():
            raise UserError(f"{path} is missing: the run does not say how its numbers are scaled")
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return cls(scale(document["inputs"]), scale(document["targets"]))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise UserError(f"{path} does not have a mean and a deviation for each column") from error


def scale(given: Any) -> Scale:
    """One of them, as it is written."""
    mean, deviation = (tuple(map(float, given[name])) for name in ("mean", "deviation"))
    if len(mean) != len(deviation) or not mean or not all(map(math.isfinite, (*mean, *deviation))):
        raise ValueError("not a number for each column")
    if min(deviation) <= 0:
        raise ValueError("a deviation is more than 0")
    return Scale(mean, deviation)
