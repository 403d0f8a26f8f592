"""Labelled texts for classification: TSV, JSON lines, or a folder for each label."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.readers.dispatch import find_format_suffix, open_rows
from regard.data.readers.jsonl import is_valid_unicode, make_surrogate_error, parse_json_line
from regard.data.readers.text import STANDARD_INPUT, format_path, iterate_lines
from regard.errors import UserError, format_suggestion, short_repr
from regard.tokenizers.vocabularies import is_valid_label

_JSON_FORMAT = '{"text": "…", "label": "…"}'


class LabelledText(NamedTuple):
    """A text, its label, and its location for messages."""

    text: str
    label: str
    where: str


class LabelColumns(NamedTuple):
    """Columns of a TSV file, by number or name, or keys of JSON objects; and whether the first line has names."""

    label: int | str | None = None
    text: int | str | None = None
    header: bool | None = None


class _ColumnIndices(NamedTuple):
    """Columns of label and text, from 0."""

    label: int
    text: int


def read_labelled_texts(paths: Sequence[Path], columns: LabelColumns) -> Iterator[LabelledText]:
    """Yield the texts of files and folders; raise UserError for a missing or invalid label."""
    for path in paths:
        for example in read_texts(path, columns):
            _check_label(example, columns)
            yield example


def has_labelled_texts(path: Path) -> bool:
    """Return whether a path is a folder or a file type with labels (TSV, JSON lines)."""
    return path.is_dir() or find_format_suffix(path) in _TEXT_PARSERS


def read_texts(path: Path, columns: LabelColumns) -> Iterator[LabelledText]:
    """Yield the texts of a file or folder; a missing label is empty."""
    if path.is_dir():
        return _read_text_folder(path)
    if not (path.exists() or path == STANDARD_INPUT or has_labelled_texts(path)):
        raise UserError(f"there is no file and no folder {path}")
    suffix, lines = open_rows(path, "neither a folder nor a file of labelled texts")
    return _TEXT_PARSERS[suffix](lines, path, columns)


def _check_label(example: LabelledText, columns: LabelColumns) -> None:
    """Raise UserError if a label is missing or invalid."""
    if not example.label:
        column = "" if columns.label is None else f" in {columns.label!r}"
        raise UserError(f"{example.where}: there is no label{column} (data.label)")
    if not is_valid_unicode(example.label):
        raise make_surrogate_error(example.where)
    if not is_valid_label(example.label):
        raise UserError(f"{example.where}: a label is one line of text without tabs, not {short_repr(example.label)}")


def _parse_text_tsv(rows: Iterator[str], path: Path, columns: LabelColumns) -> Iterator[LabelledText]:
    """Yield texts from TSV lines: label, text, or the configured columns. Blank lines are ignored."""
    indices: _ColumnIndices | None = None
    for number, line in enumerate(rows, 1):
        where, cells = f"{format_path(path)}:{number}", line.split("\t")
        if indices is None:
            indices, is_header = _find_columns(cells, columns, where)
            if is_header:
                continue
        if not line.strip():
            continue
        if len(cells) <= indices.text:
            raise UserError(
                f"{where}: the text is expected in column {indices.text + 1} (data.text), but the line has "
                f"{len(cells)} tab-separated column{'s' * (len(cells) > 1)}: {short_repr(line)}"
            )
        label = cells[indices.label].strip() if indices.label < len(cells) else ""
        yield LabelledText(cells[indices.text], label, where)


def _find_columns(cells: Sequence[str], columns: LabelColumns, where: str) -> tuple[_ColumnIndices, bool]:
    """Return the columns of label and text, and whether the first line is a header."""
    names = [cell.strip() for cell in cells]
    if columns.header or isinstance(columns.label, str) or isinstance(columns.text, str):
        indices = _ColumnIndices(
            _find_column_index(columns.label, "label", 0, names, where),
            _find_column_index(columns.text, "text", 1, names, where),
        )
        if indices.label == indices.text:
            raise UserError(f"{where}: label and text are both in column {indices.label + 1} (data.label, data.text)")
        return indices, True
    indices = _ColumnIndices((columns.label or 1) - 1, (columns.text or 2) - 1)
    headers = [names[index].lower() if index < len(names) else "" for index in indices]
    return indices, columns.header is None and headers == ["label", "text"]


def _find_column_index(
    setting: int | str | None, default_name: str, default_index: int, names: Sequence[str], where: str
) -> int:
    """Return the index of a column that is given by number, by name, or by default."""
    if isinstance(setting, int):
        return setting - 1
    if setting is None:
        return names.index(default_name) if default_name in names else default_index
    if setting not in names:
        raise UserError(f"{where}: there is no column {setting!r}{format_suggestion(setting, names)}")
    return names.index(setting)


def _parse_text_jsonl(rows: Iterator[str], path: Path, columns: LabelColumns) -> Iterator[LabelledText]:
    keys = [columns.text or "text", columns.label or "label"]
    for key in keys:
        if isinstance(key, int):
            raise UserError(
                f"{format_path(path)}: JSON objects have keys, not column {key}; set data.label and data.text to keys"
            )
    for number, line in enumerate(rows, 1):
        if not line.strip():
            continue
        where = f"{format_path(path)}:{number}"
        row = parse_json_line(line, where)
        text, label = (row.get(key) if isinstance(row, dict) else None for key in keys)
        if not isinstance(text, str) or not _is_json_label(label):
            raise UserError(f"{where}: expected {_JSON_FORMAT} (data.text, data.label), not {short_repr(row)}")
        if not is_valid_unicode(text):
            raise make_surrogate_error(where)
        yield LabelledText(text, _format_label(label).strip(), where)


def _is_json_label(value: Any) -> bool:
    """Return whether a JSON value can be a label: text, a number, a boolean, or null for none."""
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _format_label(label: Any) -> str:
    return label if isinstance(label, str) else "" if label is None else json.dumps(label)


_TEXT_PARSERS = {".tsv": _parse_text_tsv, ".jsonl": _parse_text_jsonl}


def _read_text_folder(path: Path) -> Iterator[LabelledText]:
    """Yield the texts of a folder with a subfolder for each label, or of one such subfolder.

    Files are sorted by name regardless of label, so that the first texts are of all labels.
    """
    label_folders = [folder for folder in path.iterdir() if folder.is_dir() and _list_text_files(folder)]
    files = sorted(
        (file.name, folder.resolve().name, file)
        for folder in label_folders or [path]
        for file in _list_text_files(folder)
    )
    if not files:
        raise UserError(f"{path} contains no texts; expected a subfolder for each label, with .txt files")
    for _, label, file in files:
        yield LabelledText("\n".join(iterate_lines(file)), label, str(file))


def _list_text_files(path: Path) -> list[Path]:
    """Return the text files in a folder, compressed or not."""
    return [file for file in path.iterdir() if find_format_suffix(file) == ".txt" and file.is_file()]
