"""Pairs in text files: two of them line by line, or one with a tab between source and target."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from regard.data.files import lines, name_of
from regard.data.pair import Pair
from regard.data.sides import Wish
from regard.errors import UserError

QUOTED = re.compile(r'"(?:[^"]|"")*+"')


def tsv(path: Path, wish: Wish) -> Iterator[Pair]:
    """Source and target in the first two columns, which name no language; further columns are left alone."""
    return columns(lines(path), path, wish)


def columns(texts: Iterator[str], path: Path, wish: Wish) -> Iterator[Pair]:
    """The pairs of such lines."""
    for number, line in enumerate(texts, 1):
        if number == 1:  # there is such a file
            wish.meet_no_names(name_of(path))
        cells = line.split("\t") if line.strip() else ["", ""]  # a blank line is a pair of nothing, as in two files
        if len(cells) < 2:
            raise UserError(f"{name_of(path)}:{number}: no tab; a line of a .tsv file is source, tab, target")
        yield Pair(unquoted(cells[0]), unquoted(cells[1]))


def unquoted(cell: str) -> str:
    """A cell as it was before a spreadsheet wrote it down, which doubles quotes and puts others around the whole.

    Quotes around a cell that has none inside are the text's own: a spreadsheet would have had no need for them.

    >>> unquoted('"The ""old"" dog"'), unquoted('"The dog"')
    ('The "old" dog', '"The dog"')
    """
    inside = cell[1:-1]
    return inside.replace('""', '"') if '""' in inside and QUOTED.fullmatch(cell) else cell


def two_files(source: Path, target: Path, wish: Wish) -> Iterator[Pair]:
    """Line by line; both counts are named where they differ."""
    left, right = lines(source), lines(target)
    for number, (one, other) in enumerate(zip_longest(left, right)):
        if one is None or other is None:
            rest = 1 + sum(1 for _ in (right if one is None else left))  # a pipe cannot be read again to count it
            counts = (number, number + rest) if one is None else (number + rest, number)
            raise UserError(
                f"{source} has {counts[0]} lines and {target} has {counts[1]}; both sides of a corpus need the same "
                f"number"
            )
        if number == 0:
            wish.meet_no_names(f"a corpus of two text files ({source}, {target})")
        yield Pair(one, other)
