"""Pairs in text files: two of them line by line, or one with a tab between source and target."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from regard.data.language_pair import LanguageRequest
from regard.data.readers.text_io import format_path, iterate_lines
from regard.data.sentence_pair import Pair
from regard.errors import UserError

_QUOTED_CELL = re.compile(r'"(?:[^"]|"")*+"')


def read_tsv(path: Path, request: LanguageRequest) -> Iterator[Pair]:
    """Source and target in the first two columns, which name no language; further columns are left alone."""
    return parse_tsv_lines(iterate_lines(path), path, request)


def parse_tsv_lines(lines: Iterator[str], path: Path, request: LanguageRequest) -> Iterator[Pair]:
    """The pairs of such lines."""
    for number, line in enumerate(lines, 1):
        if number == 1:  # there is such a file
            request.check_unnamed_file(format_path(path))
        cells = line.split("\t") if line.strip() else ["", ""]  # a blank line is a pair of nothing, as in two files
        if len(cells) < 2:
            raise UserError(f"{format_path(path)}:{number}: no tab; a line of a .tsv file is source, tab, target")
        yield Pair(unquote_cell(cells[0]), unquote_cell(cells[1]))


def unquote_cell(cell: str) -> str:
    """A cell as it was before a spreadsheet wrote it down, which doubles quotes and puts others around the whole.

    Quotes around a cell that has none inside are the text's own: a spreadsheet would have had no need for them.

    >>> unquoted('"The ""old"" dog"'), unquoted('"The dog"')
    ('The "old" dog', '"The dog"')
    """
    inside = cell[1:-1]
    return inside.replace('""', '"') if '""' in inside and _QUOTED_CELL.fullmatch(cell) else cell


def read_two_text_files(source: Path, target: Path, request: LanguageRequest) -> Iterator[Pair]:
    """Line by line; both counts are named where they differ."""
    left, right = iterate_lines(source), iterate_lines(target)
    for number, (one, other) in enumerate(zip_longest(left, right)):
        if one is None or other is None:
            rest = 1 + sum(1 for _ in (right if one is None else left))  # a pipe cannot be read again to count it
            counts = (number, number + rest) if one is None else (number + rest, number)
            raise UserError(
                f"{source} has {counts[0]} lines and {target} has {counts[1]}; both sides of a corpus need the same "
                f"number"
            )
        if number == 0:
            request.check_unnamed_file(f"a corpus of two text files ({source}, {target})")
        yield Pair(one, other)
