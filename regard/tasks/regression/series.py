"""The `data` and `text` sections of a recipe for numbers over time."""

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

from regard.data.readers.text_io import format_path, iterate_lines
from regard.data.settings import BaseDataSettings
from regard.errors import UserError, short_repr


@dataclass(frozen=True, kw_only=True)
class RegressionSettings(BaseDataSettings):
    """Which series are trained on, and how many of a line's numbers are read; those behind them are to be found."""

    inputs: int = 1
    max_length: int = 2000
    dev_series: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inputs < 1 or self.max_length < 1 or self.dev_series < 1:
            raise ValueError(
                "inputs, max_length and dev_series are at least 1, "
                f"not {self.inputs}, {self.max_length} and {self.dev_series}"
            )


@dataclass(frozen=True, kw_only=True)
class NoTextSettings:
    """Nothing: there is no text."""


_JSON_FORMAT = '{"inputs": [[…], …], "targets": [[…], …]}'
MAX_MAGNITUDE = 1e30  # of numbers that are read: their squares can be added up

Table = npt.NDArray[np.float64]


class Series(NamedTuple):
    """Numbers over time; the two tables have a row for each step."""

    inputs: Table  # S,I
    targets: Table | None  # S,O; None: nobody has said


class _LineLocation(NamedTuple):
    """Where something stands, for what is to be said of it."""

    name: str | None
    line_number: int

    def make_error(self, problem: str) -> UserError:
        """What is wrong there."""
        return UserError(
            f"{self.name}:{self.line_number}: {problem}" if self.name else f"line {self.line_number}: {problem}"
        )


def read_series_files(paths: Sequence[Path], num_inputs: int) -> list[Series]:
    """All series of some files, each with its targets, and as many of these everywhere."""
    found: list[Series] = []
    for path in paths:
        before = len(found)
        for one, location in parse_series(iterate_lines(path), num_inputs, format_path(path)):
            if one.targets is None:
                raise location.make_error(f"no target: all {num_inputs} numbers of a step are read (data.inputs)")
            wanted = count_targets(found[0]) if found else count_targets(one)
            if count_targets(one) != wanted:
                raise location.make_error(f"{count_targets(one)} targets in a step, and {wanted} in those before")
            found.append(one)
        if len(found) == before:
            raise UserError(f"{format_path(path)}: no numbers in there, nothing to work with")
    return found


def count_targets(one: Series) -> int:
    """How many numbers are to be found for each step."""
    return 0 if one.targets is None else one.targets.shape[1]


def parse_series(
    text_lines: Iterable[str], num_inputs: int, name: str | None = None
) -> Iterator[tuple[Series, _LineLocation]]:
    """The series that lines hold and where each ends, as soon as it is there; JSON is known by its first sign."""
    every = enumerate(text_lines, 1)
    first = next(((number, line) for number, line in every if line.strip()), None)
    if first is None:
        return
    objects = first[1].lstrip().startswith("{")
    yield from (_parse_json_series if objects else _parse_column_series)(chain([first], every), num_inputs, name)


def _parse_column_series(
    numbered_lines: Iterable[tuple[int, str]], num_inputs: int, name: str | None
) -> Iterator[tuple[Series, _LineLocation]]:
    """A blank line ends a series."""
    rows: list[list[float]] = []
    location = _LineLocation(name, 0)
    for number, line in numbered_lines:
        location = _LineLocation(name, number)
        if line.strip():
            rows.append(_parse_row(line.split(), location))
            if len(rows[-1]) != len(rows[0]):
                raise location.make_error(f"{len(rows[-1])} numbers, and {len(rows[0])} in the line before")
        elif rows:
            yield _split_inputs_and_targets(rows, num_inputs, location), location
            rows = []
    if rows:
        yield _split_inputs_and_targets(rows, num_inputs, location), location


def _parse_row(cells: Sequence[str], location: _LineLocation) -> list[float]:
    """The numbers of a line."""
    try:
        found = [float(one) for one in cells]
    except ValueError as error:
        raise location.make_error(f"not numbers with white space between: {short_repr(' '.join(cells))}") from error
    return [_check_number(one, location) for one in found]


def _check_number(value: float, location: _LineLocation) -> float:
    """A number, if one can compute with it."""
    if not math.isfinite(value) or abs(value) > MAX_MAGNITUDE:
        raise location.make_error(
            f"{value} is no number to compute with; they go from {-MAX_MAGNITUDE:g} to {MAX_MAGNITUDE:g}"
        )
    return value


def _split_inputs_and_targets(rows: list[list[float]], num_inputs: int, location: _LineLocation) -> Series:
    """What is read, and what is to be found."""
    table = np.array(rows, dtype=np.float64)
    if table.shape[1] < num_inputs:
        raise location.make_error(f"{table.shape[1]} numbers in a step, and {num_inputs} are to be read (data.inputs)")
    return Series(table[:, :num_inputs], table[:, num_inputs:] if table.shape[1] > num_inputs else None)


def _parse_json_series(
    numbered_lines: Iterable[tuple[int, str]], num_inputs: int, name: str | None
) -> Iterator[tuple[Series, _LineLocation]]:
    """An object a line."""
    for number, line in numbered_lines:
        if line.strip():
            location = _LineLocation(name, number)
            yield _parse_json_line(line, num_inputs, location), location


def _parse_json_line(line: str, num_inputs: int, location: _LineLocation) -> Series:
    """One object."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise location.make_error(f"not JSON; a series is {_JSON_FORMAT}") from error
    if not isinstance(found, dict):
        raise location.make_error(f"not a series, which is {_JSON_FORMAT}")
    read_of = _parse_table(found.get("inputs"), "inputs", location)
    targets = None if found.get("targets") is None else _parse_table(found["targets"], "targets", location)
    if read_of.shape[1] != num_inputs:
        raise location.make_error(f"{read_of.shape[1]} inputs in a step, and {num_inputs} are to be read (data.inputs)")
    if targets is not None and len(targets) != len(read_of):
        raise location.make_error(f"{len(read_of)} steps of inputs and {len(targets)} of targets")
    return Series(read_of, targets)


def _parse_table(value: Any, name: str, location: _LineLocation) -> Table:
    """A list of steps, each a list of as many numbers."""
    steps = value if isinstance(value, list) else []
    if not steps or not all(isinstance(step, list) and len(step) == len(steps[0]) > 0 for step in steps):
        raise location.make_error(f'"{name}" cannot be {short_repr(value)}; a series is {_JSON_FORMAT}')
    return np.array([[_parse_number(one, name, location) for one in step] for step in steps], dtype=np.float64)


def _parse_number(value: Any, name: str, location: _LineLocation) -> float:
    """A number of JSON."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise location.make_error(f'"{name}" has {short_repr(value)} in it, which is no number')
    try:
        return _check_number(float(value), location)
    except OverflowError as error:
        raise location.make_error(f'"{name}" has a number in it that is beyond all bounds') from error
