"""Read labelled texts: TSV, JSON lines, or folders by label; and the `data` settings of classification."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.readers.dispatch import find_format_suffix
from regard.data.readers.jsonl import is_valid_unicode, make_surrogate_error, parse_json_line
from regard.data.readers.text import (
    DECOMPRESSORS,
    STANDARD_INPUT,
    decode_lines,
    detect_format,
    format_path,
    iterate_lines,
    open_decompressed,
    peek_bytes,
)
from regard.data.settings import BaseDataSettings
from regard.errors import UserError, format_suggestion, short_repr
from regard.tokenizers.label_vocabulary import is_valid_label

_IS_HIERARCHICAL = {"lin": False, "yang": True}  # by model.kind; hierarchical models read sentence by sentence


@dataclass(frozen=True, kw_only=True)
class ClassificationSettings(BaseDataSettings):
    """The `data` section of a classification recipe: files, columns of label and text, and length limits."""

    label: int | str | None = None
    text: int | str | None = None
    header: bool | None = None
    language: str = "en"
    max_length: int = 400
    max_sentences: int = 40
    dev_pairs: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_length", "max_sentences", "dev_pairs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")
        for name in ("label", "text"):
            column = getattr(self, name)
            if column in (0, "") or (type(column) is int and column < 0):
                raise ValueError(f"{name} is a column's number, from 1, or its name, not {column!r}")
        if self.label is not None and self.label == self.text:
            raise ValueError(f"label and text must be different columns, not both {self.label!r}")


def is_hierarchical(config: Mapping[str, Any]) -> bool:
    """Return whether the model of a config reads a text sentence by sentence."""
    kind = config["model"]["kind"]
    if kind not in _IS_HIERARCHICAL:
        raise UserError(f"model.kind {kind!r} is not a classifier{format_suggestion(str(kind), _IS_HIERARCHICAL)}")
    return _IS_HIERARCHICAL[kind]


_JSON_FORMAT = '{"text": "…", "label": "…"}'


class LabelledText(NamedTuple):
    """A text, its label, and its location for messages."""

    text: str
    label: str
    where: str


class _ColumnIndices(NamedTuple):
    """Columns of label and text, from 0."""

    label: int
    text: int


def read_labelled_texts(paths: Sequence[Path], settings: ClassificationSettings) -> Iterator[LabelledText]:
    """Yield the texts of files and folders; raise UserError for a missing or invalid label."""
    for path in paths:
        for example in read_texts(path, settings):
            yield _check_label(example, settings)


def has_labelled_texts(path: Path) -> bool:
    """Return whether a path is a folder or a file type with labels (TSV, JSON lines)."""
    return path.is_dir() or find_format_suffix(path) in _TEXT_PARSERS


def read_texts(path: Path, settings: ClassificationSettings) -> Iterator[LabelledText]:
    """Yield the texts of a file or folder; a missing label is empty."""
    if path.is_dir():
        return _read_text_folder(path)
    if find_format_suffix(path) in _TEXT_PARSERS:
        return _TEXT_PARSERS[find_format_suffix(path)](iterate_lines(path), path, settings)
    if path == STANDARD_INPUT or path.is_fifo():
        return _read_text_pipe(path, settings)
    if not path.exists():
        raise UserError(f"there is no file and no folder {path}")
    raise UserError(
        f"{path} is neither a folder nor a file of labelled texts ({', '.join(_TEXT_PARSERS)}, also "
        f"{', '.join(DECOMPRESSORS)}; - for standard input)"
    )


def _read_text_pipe(pipe: Path, settings: ClassificationSettings) -> Iterator[LabelledText]:
    """Yield the texts of a pipe, whose format is detected by its first bytes."""
    with open_decompressed(pipe) as file:
        kind = detect_format(peek_bytes(file))
        yield from _TEXT_PARSERS.get(kind, _parse_text_tsv)(decode_lines(file, pipe), pipe, settings)


def _check_label(example: LabelledText, settings: ClassificationSettings) -> LabelledText:
    """Return the example; raise UserError if its label is missing or invalid."""
    if not example.label:
        column = "" if settings.label is None else f" in {settings.label!r}"
        raise UserError(f"{example.where}: there is no label{column} (data.label)")
    if not is_valid_unicode(example.label):
        raise make_surrogate_error(example.where)
    if not is_valid_label(example.label):
        raise UserError(f"{example.where}: a label is one line of text without tabs, not {short_repr(example.label)}")
    return example


def _parse_text_tsv(rows: Iterator[str], path: Path, settings: ClassificationSettings) -> Iterator[LabelledText]:
    """Yield texts from TSV lines: label, text, or the configured columns. Blank lines are ignored."""
    columns: _ColumnIndices | None = None
    for number, line in enumerate(rows, 1):
        where, cells = f"{format_path(path)}:{number}", line.split("\t")
        if columns is None:
            columns, is_header = _find_columns(cells, settings, where)
            if is_header:
                continue
        if not line.strip():
            continue
        if len(cells) <= columns.text:
            raise UserError(
                f"{where}: the text is expected in column {columns.text + 1} (data.text), but the line has "
                f"{len(cells)} tab-separated column{'s' * (len(cells) > 1)}: {short_repr(line)}"
            )
        label = cells[columns.label].strip() if columns.label < len(cells) else ""
        yield LabelledText(cells[columns.text], label, where)


def _find_columns(cells: Sequence[str], settings: ClassificationSettings, where: str) -> tuple[_ColumnIndices, bool]:
    """Return the columns of label and text, and whether the first line is a header."""
    names = [cell.strip() for cell in cells]
    has_names = isinstance(settings.label, str) or isinstance(settings.text, str)
    if has_names or settings.header:
        columns = _ColumnIndices(
            _find_column_index(settings.label, "label", 0, names, where),
            _find_column_index(settings.text, "text", 1, names, where),
        )
        if columns.label == columns.text:
            raise UserError(f"{where}: label and text are both in column {columns.label + 1} (data.label, data.text)")
        return columns, True
    columns = _ColumnIndices((settings.label or 1) - 1, (settings.text or 2) - 1)  # type: ignore[operator]
    headers = [names[index].lower() if index < len(names) else "" for index in columns]
    return columns, settings.header is None and headers == ["label", "text"]


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


def _parse_text_jsonl(rows: Iterator[str], path: Path, settings: ClassificationSettings) -> Iterator[LabelledText]:
    keys = [settings.text or "text", settings.label or "label"]
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


_TEXT_PARSERS: dict[str, Callable[[Iterator[str], Path, ClassificationSettings], Iterator[LabelledText]]] = {
    ".tsv": _parse_text_tsv,
    ".jsonl": _parse_text_jsonl,
}


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
