"""Time series: columns of numbers, a line for each step, or JSON lines with a series each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.readers.text import format_path, iterate_lines, number_lines
from regard.errors import UserError, short_repr

_JSON_FORMAT = '{"inputs": [[…], …], "targets": [[…], …]}'
MAX_MAGNITUDE = 1e30  # of input numbers, so that sums of squares do not overflow

Table = npt.NDArray[np.float64]


class Series(NamedTuple):
    """Inputs and targets over time, one row per step."""

    inputs: Table  # (S, I)
    targets: Table | None  # (S, O); None: unknown

    @property
    def num_targets(self) -> int:
        """Number of targets per step; 0 if they are unknown."""
        return 0 if self.targets is None else self.targets.shape[1]


def read_series_files(paths: Sequence[Path], num_inputs: int) -> list[Series]:
    """Read the series of several files; raise UserError if targets are missing or their number varies."""
    series: list[Series] = []
    for path in paths:
        before = len(series)
        for example, where in parse_series(iterate_lines(path), num_inputs, format_path(path)):
            if example.targets is None:
                raise UserError(f"{where}: no target: all {num_inputs} numbers of a step are inputs (data.inputs)")
            series.append(example)
            if example.num_targets != series[0].num_targets:
                raise UserError(
                    f"{where}: {example.num_targets} targets in a step, but {series[0].num_targets} in earlier steps"
                )
        if len(series) == before:
            raise UserError(f"{format_path(path)}: no numbers found")
    return series


def parse_series(lines: Iterable[str], num_inputs: int, name: str = "") -> Iterator[tuple[Series, str]]:
    """Yield the series in lines, each as soon as it is complete, with the position of its end, for messages.

    Lines that begin with a brace are JSON.
    """
    numbered = number_lines(lines, name)
    for where, line in numbered:
        if line.strip():
            parse = _parse_json_series if line.lstrip().startswith("{") else _parse_column_series
            yield from parse(chain([(where, line)], numbered), num_inputs)


def _parse_column_series(numbered: Iterable[tuple[str, str]], num_inputs: int) -> Iterator[tuple[Series, str]]:
    """Yield series from lines of numbers; a blank line ends a series."""
    rows: list[list[float]] = []
    where = ""
    for where, line in numbered:
        if line.strip():
            rows.append(_parse_row(line.split(), where))
            if len(rows[-1]) != len(rows[0]):
                raise UserError(f"{where}: {len(rows[-1])} numbers, but {len(rows[0])} in the lines before")
        elif rows:
            yield _split_inputs_and_targets(rows, num_inputs, where), where
            rows = []
    if rows:
        yield _split_inputs_and_targets(rows, num_inputs, where), where


def _parse_row(cells: Sequence[str], where: str) -> list[float]:
    try:
        values = [float(cell) for cell in cells]
    except ValueError as error:
        raise UserError(
            f"{where}: expected numbers separated by white space, not {short_repr(' '.join(cells))}"
        ) from error
    return [_check_number(value, where) for value in values]


def _check_number(value: float, where: str) -> float:
    if not abs(value) <= MAX_MAGNITUDE:  # NaN, too
        raise UserError(
            f"{where}: {value} is out of range; numbers must be from {-MAX_MAGNITUDE:g} to {MAX_MAGNITUDE:g}"
        )
    return value


def _split_inputs_and_targets(rows: list[list[float]], num_inputs: int, where: str) -> Series:
    table = np.array(rows, dtype=np.float64)
    if table.shape[1] < num_inputs:
        raise UserError(f"{where}: {table.shape[1]} numbers in a step, but data.inputs is {num_inputs}")
    return Series(table[:, :num_inputs], table[:, num_inputs:] if table.shape[1] > num_inputs else None)


def _parse_json_series(numbered: Iterable[tuple[str, str]], num_inputs: int) -> Iterator[tuple[Series, str]]:
    for where, line in numbered:
        if line.strip():
            yield _parse_json_line(line, num_inputs, where), where


def _parse_json_line(line: str, num_inputs: int, where: str) -> Series:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON; a series is {_JSON_FORMAT}") from error
    if not isinstance(fields, dict):
        raise UserError(f"{where}: not a series, which is {_JSON_FORMAT}")
    inputs = _parse_table(fields.get("inputs"), "inputs", where)
    targets = None if fields.get("targets") is None else _parse_table(fields["targets"], "targets", where)
    if inputs.shape[1] != num_inputs:
        raise UserError(f"{where}: {inputs.shape[1]} inputs in a step, but data.inputs is {num_inputs}")
    if targets is not None and len(targets) != len(inputs):
        raise UserError(f"{where}: {len(inputs)} steps of inputs and {len(targets)} of targets")
    return Series(inputs, targets)


def _parse_table(value: Any, name: str, where: str) -> Table:
    """Return a list of steps, each a list of equally many numbers, as an array."""
    steps = value if isinstance(value, list) else []
    if not steps or not all(isinstance(step, list) and len(step) == len(steps[0]) > 0 for step in steps):
        raise UserError(f'{where}: "{name}" cannot be {short_repr(value)}; a series is {_JSON_FORMAT}')
    return np.array([[_parse_number(cell, name, where) for cell in step] for step in steps], dtype=np.float64)


def _parse_number(value: Any, name: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f'{where}: "{name}" contains {short_repr(value)}, which is not a number')
    try:
        return _check_number(float(value), where)
    except OverflowError as error:
        raise UserError(f'{where}: "{name}" contains a number that is out of range') from error
