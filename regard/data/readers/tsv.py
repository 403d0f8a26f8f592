"""TSV: a tab between source and target; quotes that spreadsheets add are removed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from regard.data.languages import LanguageRequest
from regard.data.readers.text import format_path, iterate_lines
from regard.data.sentence_pair import Pair
from regard.errors import UserError

_QUOTED_CELL = re.compile(r'"(?:[^"]|"")*+"')


def read_tsv(path: Path, request: LanguageRequest) -> Iterator[Pair]:
    """Yield source and target of the first two columns; further columns are ignored."""
    return parse_tsv_lines(iterate_lines(path), path, request)


def parse_tsv_lines(lines: Iterable[str], path: Path, request: LanguageRequest) -> Iterator[Pair]:
    """Yield the pairs of lines of TSV; a blank line is an empty pair, as in two files."""
    for index, (where, cells) in enumerate(iterate_tsv_rows(lines, format_path(path))):
        if index == 0:  # the file exists and is not empty
            request.check_unnamed_file(format_path(path))
        if not cells:
            yield Pair("", "")
        elif len(cells) == 1:
            raise UserError(f"{where}: no tab; a line of a .tsv file is source, tab, target")
        else:
            yield Pair(unquote_cell(cells[0]), unquote_cell(cells[1]))


def iterate_tsv_rows(lines: Iterable[str], name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the cells of each line, none if it is blank, with its position as file:line; `name` is that of the file."""
    for line_number, line in enumerate(lines, 1):
        yield f"{name}:{line_number}", line.split("\t") if line.strip() else []


def unquote_cell(cell: str) -> str:
    """Return a cell without the quotes that spreadsheets add: inner quotes doubled, and quotes around the whole cell.

    Quotes around a cell without quotes inside belong to the text: a spreadsheet would not have added them.

    >>> unquote_cell('"The ""old"" dog"'), unquote_cell('"The dog"')
    ('The "old" dog', '"The dog"')
    """
    inside = cell[1:-1]
    return inside.replace('""', '"') if '""' in inside and _QUOTED_CELL.fullmatch(cell) else cell
