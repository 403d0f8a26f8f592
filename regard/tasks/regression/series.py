"""Read time series: columns of numbers or JSON lines; and the `data` and `text` settings of regression."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.readers.text import format_path, iterate_lines
from regard.data.settings import BaseDataSettings
from regard.errors import UserError, short_repr


@dataclass(frozen=True, kw_only=True)
class RegressionSettings(BaseDataSettings):
    """The `data` section of a regression recipe; the first `inputs` numbers of a step are inputs, the rest targets."""

    inputs: int = 1
    max_length: int = 2000
    dev_series: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inputs < 1 or self.max_length < 1 or self.dev_series < 1:
            raise ValueError(
                "inputs, max_length and dev_series must be at least 1, "
                f"not {self.inputs}, {self.max_length} and {self.dev_series}"
            )


@dataclass(frozen=True, kw_only=True)
class NoTextSettings:
    """The `text` section of a regression recipe, which is empty."""


_JSON_FORMAT = '{"inputs": [[…], …], "targets": [[…], …]}'
MAX_MAGNITUDE = 1e30  # of input numbers, so that sums of squares do not overflow

Table = npt.NDArray[np.float64]


class Series(NamedTuple):
    """Inputs and targets over time, one row per step."""

    inputs: Table  # (S, I)
    targets: Table | None  # (S, O); None: unknown


class _LineLocation(NamedTuple):
    """File name and line number, for messages."""

    name: str | None
    line_number: int

    def make_error(self, problem: str) -> UserError:
        return UserError(
            f"{self.name}:{self.line_number}: {problem}" if self.name else f"line {self.line_number}: {problem}"
        )


def read_series_files(paths: Sequence[Path], num_inputs: int) -> list[Series]:
    """Read the series of several files; raise UserError if targets are missing or their number varies."""
    series: list[Series] = []
    for path in paths:
        before = len(series)
        for example, location in parse_series(iterate_lines(path), num_inputs, format_path(path)):
            if example.targets is None:
                raise location.make_error(f"no target: all {num_inputs} numbers of a step are inputs (data.inputs)")
            expected = count_targets(series[0]) if series else count_targets(example)
            if count_targets(example) != expected:
                raise location.make_error(
                    f"{count_targets(example)} targets in a step, but {expected} in earlier steps"
                )
            series.append(example)
        if len(series) == before:
            raise UserError(f"{format_path(path)}: no numbers found")
    return series


def count_targets(one: Series) -> int:
    """Return the number of targets per step; 0 if they are unknown."""
    return 0 if one.targets is None else one.targets.shape[1]


def parse_series(
    text_lines: Iterable[str], num_inputs: int, name: str | None = None
) -> Iterator[tuple[Series, _LineLocation]]:
    """Yield the series in lines, each as soon as it is complete, with the location of its end.

    Lines that begin with a brace are JSON.
    """
    numbered = enumerate(text_lines, 1)
    first = next(((number, line) for number, line in numbered if line.strip()), None)
    if first is None:
        return
    is_json = first[1].lstrip().startswith("{")
    yield from (_parse_json_series if is_json else _parse_column_series)(chain([first], numbered), num_inputs, name)


def _parse_column_series(
    numbered_lines: Iterable[tuple[int, str]], num_inputs: int, name: str | None
) -> Iterator[tuple[Series, _LineLocation]]:
    """Yield series from lines of numbers; a blank line ends a series."""
    rows: list[list[float]] = []
    location = _LineLocation(name, 0)
    for number, line in numbered_lines:
        location = _LineLocation(name, number)
        if line.strip():
            rows.append(_parse_row(line.split(), location))
            if len(rows[-1]) != len(rows[0]):
                raise location.make_error(f"{len(rows[-1])} numbers, but {len(rows[0])} in the lines before")
        elif rows:
            yield _split_inputs_and_targets(rows, num_inputs, location), location
            rows = []
    if rows:
        yield _split_inputs_and_targets(rows, num_inputs, location), location


def _parse_row(cells: Sequence[str], location: _LineLocation) -> list[float]:
    try:
        values = [float(cell) for cell in cells]
    except ValueError as error:
        raise location.make_error(
            f"expected numbers separated by white space, not {short_repr(' '.join(cells))}"
        ) from error
    return [_check_number(value, location) for value in values]


def _check_number(value: float, location: _LineLocation) -> float:
    if not math.isfinite(value) or abs(value) > MAX_MAGNITUDE:
        raise location.make_error(
            f"{value} is out of range; numbers must be from {-MAX_MAGNITUDE:g} to {MAX_MAGNITUDE:g}"
        )
    return value


def _split_inputs_and_targets(rows: list[list[float]], num_inputs: int, location: _LineLocation) -> Series:
    table = np.array(rows, dtype=np.float64)
    if table.shape[1] < num_inputs:
        raise location.make_error(f"{table.shape[1]} numbers in a step, but data.inputs is {num_inputs}")
    return Series(table[:, :num_inputs], table[:, num_inputs:] if table.shape[1] > num_inputs else None)


def _parse_json_series(
    numbered_lines: Iterable[tuple[int, str]], num_inputs: int, name: str | None
) -> Iterator[tuple[Series, _LineLocation]]:
    for number, line in numbered_lines:
        if line.strip():
            location = _LineLocation(name, number)
            yield _parse_json_line(line, num_inputs, location), location


def _parse_json_line(line: str, num_inputs: int, location: _LineLocation) -> Series:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise location.make_error(f"not JSON; a series is {_JSON_FORMAT}") from error
    if not isinstance(fields, dict):
        raise location.make_error(f"not a series, which is {_JSON_FORMAT}")
    inputs = _parse_table(fields.get("inputs"), "inputs", location)
    targets = None if fields.get("targets") is None else _parse_table(fields["targets"], "targets", location)
    if inputs.shape[1] != num_inputs:
        raise location.make_error(f"{inputs.shape[1]} inputs in a step, but data.inputs is {num_inputs}")
    if targets is not None and len(targets) != len(inputs):
        raise location.make_error(f"{len(inputs)} steps of inputs and {len(targets)} of targets")
    return Series(inputs, targets)


def _parse_table(value: Any, name: str, location: _LineLocation) -> Table:
    """Return a list of steps, each a list of equally many numbers, as an array."""
    steps = value if isinstance(value, list) else []
    if not steps or not all(isinstance(step, list) and len(step) == len(steps[0]) > 0 for step in steps):
        raise location.make_error(f'"{name}" cannot be {short_repr(value)}; a series is {_JSON_FORMAT}')
    return np.array([[_parse_number(cell, name, location) for cell in step] for step in steps], dtype=np.float64)


def _parse_number(value: Any, name: str, location: _LineLocation) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise location.make_error(f'"{name}" contains {short_repr(value)}, which is not a number')
    try:
        return _check_number(float(value), location)
    except OverflowError as error:
        raise location.make_error(f'"{name}" contains a number that is out of range') from error
