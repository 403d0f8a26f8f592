"""Pairs of sentences from one file that holds both sides, or from two text files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from regard.data.files import lines
from regard.errors import UserError


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


def tsv(path: Path) -> Iterator[Pair]:
    """Source and target in the first two columns; further columns are left alone."""
    for number, line in enumerate(lines(path), 1):
        columns = line.split("\t") if line.strip() else ["", ""]  # a blank line is a pair of nothing, as in two files
        if len(columns) < 2:
            raise UserError(f"{path}:{number}: no tab; a line of a .tsv file is source, tab, target")
        yield Pair(columns[0], columns[1])


def jsonl(path: Path) -> Iterator[Pair]:
    """One object a line with the keys "source" and "target"."""
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(row, dict) or not all(isinstance(row.get(side), str) for side in ("source", "target")):
            raise UserError(f'{path}:{number}: not a pair; a line of a .jsonl file is {{"source": "…", "target": "…"}}')
        pair = Pair(row["source"], row["target"])
        if not all(map(writable, pair)):
            raise UserError(f"{path}:{number}: half a character (\\ud800 to \\udfff alone), which no file can hold")
        yield pair


def writable(text: str) -> bool:
    """Whether text has a form in UTF-8: JSON may write one half of a surrogate pair, which has none."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


READERS: dict[str, Callable[[Path], Iterator[Pair]]] = {".tsv": tsv, ".jsonl": jsonl}


def two_files(source: Path, target: Path) -> Iterator[Pair]:
    """Line by line; both counts are named where they differ."""
    missing = object()
    for number, (left, right) in enumerate(zip_longest(lines(source), lines(target), fillvalue=missing)):
        if left is missing or right is missing:
            counts = {source: number, target: number}
            counts[source if right is missing else target] = sum(
                1 for _ in lines(source if right is missing else target)
            )
            raise UserError(
                f"{source} has {counts[source]} lines and {target} has {counts[target]}; both sides of a corpus need "
                f"the same number"
            )
        yield Pair(str(left), str(right))


def holds_pairs(path: Path) -> bool:
    """Whether a file, by its name, holds both sides."""
    return suffix(path) in READERS


def suffix(path: Path) -> str:
    """The format's ending: that of `corpus.tsv.gz` is `.tsv`."""
    inner = path.with_suffix("") if path.suffix in (".gz", ".xz") else path
    return inner.suffix


def read(paths: Sequence[Path], source: str | None = None, target: str | None = None) -> Iterator[Pair]:
    """The pairs of DATA: one file that holds pairs, or two text files, source first."""
    if len(paths) == 1 and holds_pairs(paths[0]):
        return READERS[suffix(paths[0])](paths[0])
    if len(paths) == 2 and not any(map(holds_pairs, paths)):
        return two_files(*paths)
    given = " ".join(map(str, paths)) or "nothing"
    formats = ", ".join(READERS)
    raise UserError(f"data is one file that holds pairs ({formats}, also .gz and .xz) or two text files, not {given}")


def pairs(paths: Sequence[Path], source: str | None = None, target: str | None = None) -> list[Pair]:
    """All pairs of DATA, at least one."""
    read_pairs = list(read(paths, source, target))
    if not any(pair.source.strip() and pair.target.strip() for pair in read_pairs):
        raise UserError(f"{' and '.join(map(str, paths))}: no pairs in there, nothing to work with")
    return read_pairs


def languages(paths: Sequence[Path]) -> tuple[str, str]:
    """What the names of the files say: `train.en train.de` -> en, de; `de-en.tsv` -> de, en; else source, target."""
    if len(paths) == 2:
        endings = [suffix(path).removeprefix(".") for path in paths]
        return (endings[0], endings[1]) if all(endings) and endings[0] != endings[1] else ("source", "target")
    stem = paths[0].name.split(".")[0] if paths else ""
    halves = stem.rsplit("_", 1)[-1].split("-")
    if len(halves) == 2 and all(half.isalpha() and 2 <= len(half) <= 3 for half in halves):
        return halves[0], halves[1]
    return "source", "target"
