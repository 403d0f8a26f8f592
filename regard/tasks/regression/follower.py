"""Series in, numbers for each of their steps out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.config import parse
from regard.data.files import lines, name_of
from regard.errors import UserError, shown
from regard.models.regression import Regressor
from regard.runs import Run
from regard.tasks.asking import several
from regard.tasks.loading import only, where
from regard.tasks.regression.examples import Examples
from regard.tasks.regression.files import LARGEST, Series, Table, columns, read, series
from regard.tasks.regression.following import follow
from regard.tasks.regression.measures import figures
from regard.tasks.regression.prediction import Numbers
from regard.tasks.regression.scale import Scales
from regard.tasks.regression.settings import NumberSettings

BATCH_TOKENS = 20_000

Input = Sequence[Sequence[float]] | Table  # a step of time after the other, the numbers of each


class Follower:
    """A model with the scales of its numbers."""

    def __init__(self, model: Regressor, scales: Scales, device: torch.device) -> None:
        self.device = device
        self.model = model.to(device).eval()
        self.scales = scales

    def predict(self, inputs: Sequence[Input]) -> list[Numbers]:
        """Numbers for each step of each series, in order; a series is a list of steps, a step a list of numbers."""
        tables = [self.table(given) for given in several(inputs, "series")]
        made = iter(self.followed([Series(table, None) for table in tables if len(table)]))
        none = np.zeros((0, self.scales.sizes[1]))
        return [Numbers(next(made) if len(table) else none) for table in tables]

    def table(self, given: Input) -> Table:
        """A series as it was given, if it can be read."""
        width = self.scales.sizes[0]
        steps = f"steps, each of {width} number{'s' * (width > 1)}"
        try:
            found = np.array(given, dtype=np.float64)
        except (ValueError, TypeError, OverflowError) as error:
            raise UserError(f"a series is a list of {steps}, not {shown(given)}") from error
        if found.shape == (0,):
            return np.zeros((0, width))
        if found.ndim != 2 or found.shape[1] != width or not (np.abs(found) <= LARGEST).all():
            raise UserError(f"a series is a list of {steps}, not {shown(given)}")
        return found

    def asked(self, given: Any) -> Table:
        """A series as in a line of JSON."""
        if not isinstance(given, Mapping) or "inputs" not in given:
            raise UserError(f'a series is {{"inputs": [[…], …]}}, not {shown(given)}')
        return self.table(given["inputs"])

    def followed(self, some: Sequence[Series]) -> list[Table]:
        """What the model gives, in the scale that its targets had."""
        made = follow(self.model, Examples(some, self.scales), self.device, BATCH_TOKENS)
        return [self.scales.targets.natural(one) for one in made]

    def inputs(self, path: Path) -> Iterator[Table]:
        """The series of a file."""
        return self.read(lines(path), name_of(path))

    def read(self, lines: Iterable[str], name: str | None = None) -> Iterator[Table]:
        """The series that lines hold, as in training; targets may be there or not."""
        for one, place in read(lines, self.scales.sizes[0], name):
            if columns(one) not in (0, self.scales.sizes[1]):
                wanted = self.scales.sizes
                raise place.wrong(f"of a step this model reads {wanted[0]} numbers and finds {wanted[1]} more")
            yield one.inputs

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """How near the numbers are to those of files with targets."""
        found = series(paths, self.scales.sizes[0])
        gold = [one.targets for one in found if one.targets is not None]
        if gold[0].shape[1] != self.scales.sizes[1]:
            raise UserError(
                f"{paths[0]} has {gold[0].shape[1]} targets in a step, and the model {self.scales.sizes[1]}"
            )
        counts = {"series": len(gold), "steps": sum(map(len, gold))}
        return counts | figures(gold, self.followed(found))


def load(*runs: str | Path, device: str | torch.device | None = None) -> Follower:
    """The best model of a run, ready to follow series."""
    run = only(runs, "regresses")
    scales = saved(run)
    return Follower(run.model(scales.sizes), scales, where(device))


def saved(run: Run) -> Scales:
    """The scales of a run, for as many inputs as it says that it reads."""
    scales = Scales.load(run.folder / "tokenizer")
    inputs = parse(NumberSettings, run.config()["data"], "data").inputs
    if scales.sizes[0] != inputs:
        raise UserError(f"{run.folder} reads {inputs} numbers of a step (data.inputs), and scales {scales.sizes[0]}")
    return scales
