"""Labelled texts for classification: TSV, JSON lines, or a folder for each label."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.readers.dispatch import find_format_suffix, open_rows
from regard.data.readers.jsonl import iterate_json_lines
from regard.data.readers.text import STANDARD_INPUT, format_path, iterate_lines, iterate_tsv_rows, number_lines
from regard.errors import UserError, format_suggestion, short_repr
from regard.tokenizers.tokenizer import check_unicode
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


def read_labelled_texts(paths: Sequence[Path], columns: LabelColumns) -> Iterator[LabelledText]:
    """Yield the texts of files and folders; raise UserError for a missing or invalid label."""
    for example in chain.from_iterable(read_texts(path, columns) for path in paths):
        if not example.label:
            column = "" if columns.label is None else f" in {columns.label!r}"
            raise UserError(f"{example.where}: there is no label{column} (data.label)")
        check_unicode(example.label, example.where)
        if not is_valid_label(example.label):
            raise UserError(
                f"{example.where}: a label is one line of text without tabs, not {short_repr(example.label)}"
            )
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


def _parse_text_tsv(rows: Iterator[str], path: Path, columns: LabelColumns) -> Iterator[LabelledText]:
    """Yield texts from TSV lines: label, text, or the configured columns. Blank lines are ignored."""
    for index, (where, cells) in enumerate(iterate_tsv_rows(rows, format_path(path))):
        if index == 0:
            label_index, text_index, is_header = _find_columns(cells, columns, where)
            if is_header:
                continue
        if not cells:
            continue
        if len(cells) <= text_index:
            line = "\t".join(cells)
            raise UserError(
                f"{where}: the text is expected in column {text_index + 1} (data.text), but the line has "
                f"{len(cells)} tab-separated column{'s' * (len(cells) > 1)}: {short_repr(line)}"
            )
        label = cells[label_index].strip() if label_index < len(cells) else ""
        yield LabelledText(cells[text_index], label, where)


def _find_columns(cells: Sequence[str], columns: LabelColumns, where: str) -> tuple[int, int, bool]:
    """Return the columns of label and text, from 0, and whether the first line is a header."""
    names = [cell.strip() for cell in cells]
    if columns.header or isinstance(columns.label, str) or isinstance(columns.text, str):
        label = _find_column_index(columns.label, "label", 0, names, where)
        text = _find_column_index(columns.text, "text", 1, names, where)
        if label == text:
            raise UserError(f"{where}: label and text are both in column {label + 1} (data.label, data.text)")
        return label, text, True
    label, text = (columns.label or 1) - 1, (columns.text or 2) - 1
    headers = [names[index].lower() if index < len(names) else "" for index in (label, text)]
    return label, text, columns.header is None and headers == ["label", "text"]


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
    text_key, label_key = columns.text or "text", columns.label or "label"
    if isinstance(text_key, int) or isinstance(label_key, int):
        number = text_key if isinstance(text_key, int) else label_key
        raise UserError(
            f"{format_path(path)}: JSON objects have keys, not column {number}; set data.label and data.text to keys"
        )
    expected = f"expected {_JSON_FORMAT} (data.text, data.label)"
    for where, row in iterate_json_lines(number_lines(rows, format_path(path)), expected):
        text, label = row.get(text_key), _parse_json_label(row.get(label_key))
        if not isinstance(text, str) or label is None:
            raise UserError(f"{where}: {expected}, not {short_repr(row)}")
        check_unicode(text, where)
        yield LabelledText(text, label, where)


def _parse_json_label(value: Any) -> str | None:
    """Return a label: text, a number, a boolean, or null, which is none and becomes ""; None for other values."""
    if value is None or isinstance(value, str):
        return (value or "").strip()
    is_label = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return json.dumps(value) if is_label else None


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
