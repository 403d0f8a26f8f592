"""Texts with their labels: tab-separated, as JSON, or as files in a folder for each label."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.corpus import suffix
from regard.data.files import COMPRESSED, STANDARD_INPUT, lines, lines_of, name_of, reading
from regard.data.formats.jsonl import parsed, unwritable, writable
from regard.data.recognition import first_bytes, form
from regard.errors import UserError, nearest, shown
from regard.tasks.classification.settings import ClassificationSettings
from regard.text.labels import fits

FORM = '{"text": "…", "label": "…"}'


class Example(NamedTuple):
    """A text, its label, and where it stands."""

    text: str
    label: str
    where: str


class Columns(NamedTuple):
    """Where a line has its label and its text, from 0."""

    label: int
    text: int


def read(paths: Sequence[Path], settings: ClassificationSettings) -> Iterator[Example]:
    """The texts of files and folders, one behind the other."""
    for path in paths:
        for example in texts(path, settings):
            yield checked(example, settings)


def holds_texts(path: Path) -> bool:
    """Whether this is a folder, or a file of a kind that has more than a text in a line."""
    return path.is_dir() or suffix(path) in READERS


def texts(path: Path, settings: ClassificationSettings) -> Iterator[Example]:
    """The texts of one of them; a label that is missing is empty."""
    if path.is_dir():
        return folder(path)
    if suffix(path) in READERS:
        return READERS[suffix(path)](lines(path), path, settings)
    if path == STANDARD_INPUT or path.is_fifo():
        return unnamed(path, settings)
    if not path.exists():
        raise UserError(f"there is no file and no folder {path}")
    raise UserError(
        f"{path} is neither a folder nor of a kind that holds texts with labels ({', '.join(READERS)}, also "
        f"{', '.join(COMPRESSED)}; - for standard input)"
    )


def unnamed(pipe: Path, settings: ClassificationSettings) -> Iterator[Example]:
    """What comes through a pipe, whose first bytes say in which form."""
    with reading(pipe) as file:
        kind = form(first_bytes(file))
        yield from READERS.get(kind, tsv)(lines_of(file, pipe), pipe, settings)


def checked(example: Example, settings: ClassificationSettings) -> Example:
    """The same, if it has a label, and that can stand in a line of a list."""
    if not example.label:
        named = "" if settings.label is None else f" in {settings.label!r}"
        raise UserError(f"{example.where}: there is no label{named} (data.label)")
    if not writable(example.label):
        raise unwritable(example.where)
    if not fits(example.label):
        raise UserError(f"{example.where}: a label is one line of text without tabs, not {shown(example.label)}")
    return example


def tsv(rows: Iterator[str], path: Path, settings: ClassificationSettings) -> Iterator[Example]:
    """A label, a tab and a text in each line, or other columns; further ones are left alone, and so are blank lines."""
    columns: Columns | None = None
    for number, line in enumerate(rows, 1):
        where, cells = f"{name_of(path)}:{number}", line.split("\t")
        if columns is None:
            columns, first = found(cells, settings, where)
            if first:
                continue
        if not line.strip():
            continue
        if len(cells) <= columns.text:
            raise UserError(
                f"{where}: the text is in column {columns.text + 1} (data.text), and with tabs between there "
                f"{'is' if len(cells) == 1 else 'are'} {len(cells)}: {shown(line)}"
            )
        label = cells[columns.label].strip() if columns.label < len(cells) else ""
        yield Example(cells[columns.text], label, where)


def found(cells: Sequence[str], settings: ClassificationSettings, where: str) -> tuple[Columns, bool]:
    """Where label and text are, by the first line, and whether that names the columns and is no text."""
    names = [cell.strip() for cell in cells]
    named = isinstance(settings.label, str) or isinstance(settings.text, str)
    if named or settings.header:
        columns = Columns(
            column(settings.label, "label", 0, names, where), column(settings.text, "text", 1, names, where)
        )
        if columns.label == columns.text:
            raise UserError(f"{where}: label and text are both in column {columns.label + 1} (data.label, data.text)")
        return columns, True
    columns = Columns((settings.label or 1) - 1, (settings.text or 2) - 1)  # type: ignore[operator]
    heads = [names[place].lower() if place < len(names) else "" for place in columns]
    return columns, settings.header is None and heads == ["label", "text"]


def column(wanted: int | str | None, usual: str, otherwise: int, names: Sequence[str], where: str) -> int:
    """The place of a column that is given by its number, by its name, or not at all."""
    if isinstance(wanted, int):
        return wanted - 1
    if wanted is None:
        return names.index(usual) if usual in names else otherwise
    if wanted not in names:
        raise UserError(f"{where}: there is no column {wanted!r}{nearest(wanted, names)}")
    return names.index(wanted)


def jsonl(rows: Iterator[str], path: Path, settings: ClassificationSettings) -> Iterator[Example]:
    """An object in each line."""
    keys = [settings.text or "text", settings.label or "label"]
    for key in keys:
        if isinstance(key, int):
            raise UserError(f"{name_of(path)}: the objects of a .jsonl file have names and no column {key} (data)")
    for number, line in enumerate(rows, 1):
        if not line.strip():
            continue
        where = f"{name_of(path)}:{number}"
        row = parsed(line, where)
        text, label = (row.get(key) if isinstance(row, dict) else None for key in keys)
        if not isinstance(text, str) or not is_label(label):
            raise UserError(f"{where}: a line is {FORM} (data.text, data.label), not {shown(row)}")
        if not writable(text):
            raise unwritable(where)
        yield Example(text, spelt(label).strip(), where)


def is_label(value: Any) -> bool:
    """Whether a value of JSON is a label, or none: text, a number or a truth value."""
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def spelt(label: Any) -> str:
    """A label as JSON writes it."""
    return label if isinstance(label, str) else "" if label is None else json.dumps(label)


READERS: dict[str, Callable[[Iterator[str], Path, ClassificationSettings], Iterator[Example]]] = {
    ".tsv": tsv,
    ".jsonl": jsonl,
}


def folder(path: Path) -> Iterator[Example]:
    """A folder for each label with a file for each text; or one such folder alone.

    In the order of the files' names, whatever the label: the first of them are of all labels.
    """
    inner = [one for one in path.iterdir() if one.is_dir() and text_files(one)]
    files = sorted((file.name, one.resolve().name, file) for one in inner or [path] for file in text_files(one))
    if not files:
        raise UserError(f"{path} holds no texts: a folder of texts has a folder for each label, with .txt files")
    for _, label, file in files:
        yield Example("\n".join(lines(file)), label, str(file))


def text_files(path: Path) -> list[Path]:
    """The text files in a folder, compressed or not."""
    return [file for file in path.iterdir() if suffix(file) == ".txt" and file.is_file()]
