"""Time series: columns of numbers, a line for each step, or JSON lines with a series each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.readers.text import detect_json_lines, format_path, iterate_json_lines, iterate_lines
from regard.errors import UserError, short_repr

_JSON_FORMAT = '{"inputs": [[…], …], "targets": [[…], …]}'
MAX_MAGNITUDE = 1e30  # of input numbers, so that sums of squares do not overflow

Table = npt.NDArray[np.float64]


class Series(NamedTuple):
    """Inputs and targets over time, one row per step."""

    inputs: Table  # (S, I)
    targets: Table  # (S, O); O is 0 if they are unknown
    where: str = ""  # file and line of its end, for messages

    @property
    def num_targets(self) -> int:
        """Number of targets per step; 0 if they are unknown."""
        return int(self.targets.shape[1])


def read_series(paths: Sequence[Path], num_inputs: int) -> Iterator[Series]:
    """Yield the series of several files; raise UserError for a file without, or if targets are missing or vary."""
    num_targets = 0
    for path in paths:
        where = ""
        for series in parse_series(iterate_lines(path), num_inputs, format_path(path)):
            where = series.where
            if not series.num_targets:
                raise UserError(f"{where}: no target: all {num_inputs} numbers of a step are inputs (data.inputs)")
            num_targets = num_targets or series.num_targets
            if series.num_targets != num_targets:
                raise UserError(f"{where}: {series.num_targets} targets in a step, but {num_targets} in earlier steps")
            yield series
        if not where:
            raise UserError(f"{format_path(path)}: no numbers found")


def parse_series(lines: Iterable[str], num_inputs: int, name: str = "") -> Iterator[Series]:
    """Yield the series in lines, each as soon as it is complete.

    If the first line begins with a brace, all are JSON.
    """
    is_json, numbered_lines = detect_json_lines(lines, name)
    if not is_json:
        yield from _parse_column_series(numbered_lines, num_inputs)
        return
    for where, fields in iterate_json_lines(numbered_lines, f"a series is {_JSON_FORMAT}"):
        yield _parse_json_series(fields, num_inputs, where)


def _parse_column_series(numbered_lines: Iterable[tuple[str, str]], num_inputs: int) -> Iterator[Series]:
    """Yield series from lines of numbers; a blank line ends a series."""
    rows: list[list[float]] = []
    for where, line in chain(numbered_lines, [("", "")]):
        if line.strip():
            rows.append(_parse_row(line.split(), where))
            last_where = where
            if len(rows[-1]) != len(rows[0]):
                raise UserError(f"{where}: {len(rows[-1])} numbers, but {len(rows[0])} in the lines before")
            if len(rows[0]) < num_inputs:
                raise UserError(f"{where}: {len(rows[0])} numbers in a step, but data.inputs is {num_inputs}")
        elif rows:
            table = np.array(rows)
            yield Series(table[:, :num_inputs], table[:, num_inputs:], last_where)
            rows = []


def _parse_row(cells: Sequence[str], where: str) -> list[float]:
    try:
        values = [float(cell) for cell in cells]
    except ValueError as error:
        raise UserError(
            f"{where}: expected numbers separated by white space, not {short_repr(' '.join(cells))}"
        ) from error
    _check_range(values, where)
    return values


def _check_range(values: Iterable[float], where: str) -> None:
    for value in values:
        if not abs(value) <= MAX_MAGNITUDE:  # NaN, too
            raise UserError(
                f"{where}: {short_repr(value)} is out of range; numbers must be from {-MAX_MAGNITUDE:g} to "
                f"{MAX_MAGNITUDE:g}"
            )


def _parse_json_series(fields: Mapping[str, Any], num_inputs: int, where: str) -> Series:
    inputs = _parse_table(fields.get("inputs"), "inputs", where)
    has_targets = fields.get("targets") is not None
    targets = _parse_table(fields["targets"], "targets", where) if has_targets else np.zeros((len(inputs), 0))
    if inputs.shape[1] != num_inputs:
        raise UserError(f"{where}: {inputs.shape[1]} inputs in a step, but data.inputs is {num_inputs}")
    if len(targets) != len(inputs):
        raise UserError(f"{where}: {len(inputs)} steps of inputs and {len(targets)} of targets")
    return Series(inputs, targets, where)


def _parse_table(value: Any, name: str, where: str) -> Table:
    """Return a list of steps, each a list of equally many numbers, as an array."""
    steps = value if isinstance(value, list) else []
    if not steps or not all(isinstance(step, list) and len(step) == len(steps[0]) > 0 for step in steps):
        raise UserError(f'{where}: "{name}" cannot be {short_repr(value)}; a series is {_JSON_FORMAT}')
    for cell in chain.from_iterable(steps):
        if type(cell) not in (int, float):
            raise UserError(f'{where}: "{name}" contains {short_repr(cell)}, which is not a number')
    _check_range(chain.from_iterable(steps), where)
    return np.array(steps, dtype=np.float64)
