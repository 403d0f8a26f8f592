"""Series of numbers from files: a line for each step of time and a blank line between series, or a JSON object each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.files import lines, name_of
from regard.errors import UserError, shown

FORM = '{"inputs": [[…], …], "targets": [[…], …]}'
LARGEST = 1e30  # of numbers that are read: their squares can be added up

Table = npt.NDArray[np.float64]


class Series(NamedTuple):
    """Numbers over time; the two tables have a row for each step."""

    inputs: Table  # S,I
    targets: Table | None  # S,O; None: nobody has said


class Place(NamedTuple):
    """Where something stands, for what is to be said of it."""

    name: str | None
    line: int

    def wrong(self, what: str) -> UserError:
        """What is wrong there."""
        return UserError(f"{self.name}:{self.line}: {what}" if self.name else f"line {self.line}: {what}")


def series(paths: Sequence[Path], inputs: int) -> list[Series]:
    """All series of some files, each with its targets, and as many of these everywhere."""
    found: list[Series] = []
    for path in paths:
        before = len(found)
        for one, place in read(lines(path), inputs, name_of(path)):
            if one.targets is None:
                raise place.wrong(f"no target: all {inputs} numbers of a step are read (data.inputs)")
            wanted = columns(found[0]) if found else columns(one)
            if columns(one) != wanted:
                raise place.wrong(f"{columns(one)} targets in a step, and {wanted} in those before")
            found.append(one)
        if len(found) == before:
            raise UserError(f"{name_of(path)}: no numbers in there, nothing to work with")
    return found


def columns(one: Series) -> int:
    """How many numbers are to be found for each step."""
    return 0 if one.targets is None else one.targets.shape[1]


def read(given: Iterable[str], inputs: int, name: str | None = None) -> Iterator[tuple[Series, Place]]:
    """The series that lines hold and where each ends, as soon as it is there; JSON is known by its first sign."""
    every = enumerate(given, 1)
    first = next(((number, line) for number, line in every if line.strip()), None)
    if first is None:
        return
    objects = first[1].lstrip().startswith("{")
    yield from (in_json if objects else in_columns)(chain([first], every), inputs, name)


def in_columns(given: Iterable[tuple[int, str]], inputs: int, name: str | None) -> Iterator[tuple[Series, Place]]:
    """A blank line ends a series."""
    rows: list[list[float]] = []
    place = Place(name, 0)
    for number, line in given:
        place = Place(name, number)
        if line.strip():
            rows.append(row(line.split(), place))
            if len(rows[-1]) != len(rows[0]):
                raise place.wrong(f"{len(rows[-1])} numbers, and {len(rows[0])} in the line before")
        elif rows:
            yield parted(rows, inputs, place), place
            rows = []
    if rows:
        yield parted(rows, inputs, place), place


def row(written: Sequence[str], place: Place) -> list[float]:
    """The numbers of a line."""
    try:
        found = [float(one) for one in written]
    except ValueError as error:
        raise place.wrong(f"not numbers with white space between: {shown(' '.join(written))}") from error
    return [sound(one, place) for one in found]


def sound(value: float, place: Place) -> float:
    """A number, if one can compute with it."""
    if not math.isfinite(value) or abs(value) > LARGEST:
        raise place.wrong(f"{value} is no number to compute with; they go from {-LARGEST:g} to {LARGEST:g}")
    return value


def parted(rows: list[list[float]], inputs: int, place: Place) -> Series:
    """What is read, and what is to be found."""
    table = np.array(rows, dtype=np.float64)
    if table.shape[1] < inputs:
        raise place.wrong(f"{table.shape[1]} numbers in a step, and {inputs} are to be read (data.inputs)")
    return Series(table[:, :inputs], table[:, inputs:] if table.shape[1] > inputs else None)


def in_json(given: Iterable[tuple[int, str]], inputs: int, name: str | None) -> Iterator[tuple[Series, Place]]:
    """An object a line."""
    for number, line in given:
        if line.strip():
            place = Place(name, number)
            yield told(line, inputs, place), place


def told(line: str, inputs: int, place: Place) -> Series:
    """One object."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise place.wrong(f"not JSON; a series is {FORM}") from error
    if not isinstance(found, dict):
        raise place.wrong(f"not a series, which is {FORM}")
    read_of = table(found.get("inputs"), "inputs", place)
    targets = None if found.get("targets") is None else table(found["targets"], "targets", place)
    if read_of.shape[1] != inputs:
        raise place.wrong(f"{read_of.shape[1]} inputs in a step, and {inputs} are to be read (data.inputs)")
    if targets is not None and len(targets) != len(read_of):
        raise place.wrong(f"{len(read_of)} steps of inputs and {len(targets)} of targets")
    return Series(read_of, targets)


def table(value: Any, name: str, place: Place) -> Table:
    """A list of steps, each a list of as many numbers."""
    steps = value if isinstance(value, list) else []
    if not steps or not all(isinstance(step, list) and len(step) == len(steps[0]) > 0 for step in steps):
        raise place.wrong(f'"{name}" cannot be {shown(value)}; a series is {FORM}')
    return np.array([[numeric(one, name, place) for one in step] for step in steps], dtype=np.float64)


def numeric(value: Any, name: str, place: Place) -> float:
    """A number of JSON."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise place.wrong(f'"{name}" has {shown(value)} in it, which is no number')
    try:
        return sound(float(value), place)
    except OverflowError as error:
        raise place.wrong(f'"{name}" has a number in it that is beyond all bounds') from error
