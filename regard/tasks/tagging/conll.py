"""Read tagged sentences: CoNLL columns and CoNLL-U; and the `data` and `text` settings of tagging."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from regard.data.readers.text import format_path, iterate_lines
from regard.data.settings import BaseDataSettings
from regard.errors import UserError, format_suggestion, short_repr

Column = int | str  # number, from 1, or CoNLL-U name


@dataclass(frozen=True, kw_only=True)
class TagDataSettings(BaseDataSettings):
    """The `data` section of a tagging recipe: files, columns of label and further inputs, and length limits."""

    label: Column | None = None
    inputs: tuple[Column, ...] | None = None
    max_length: int = 256
    dev_sentences: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length < 1 or self.dev_sentences < 1:
            raise ValueError(
                f"max_length and dev_sentences must be at least 1, not {self.max_length} and {self.dev_sentences}"
            )
        inputs = self.inputs or ()
        if len(set(inputs)) < len(inputs) or self.label in inputs:
            raise ValueError(f"inputs must be different columns and not include the label, not {list(inputs)}")


@dataclass(frozen=True, kw_only=True)
class TagTextSettings:
    """The `text` section of a tagging recipe: vocabulary, and the features of a word."""

    kind: Literal["word"] = "word"
    vocabulary: int = 30000
    minimum: int = 2
    lowercase: bool = True
    suffix: int = 3
    shape: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.vocabulary < 1:
            raise ValueError(f"vocabulary must hold at least one word, not {self.vocabulary}")
        if self.minimum < 1:
            raise ValueError(f"minimum must be at least 1, not {self.minimum}")
        if not 0 <= self.suffix <= 20:
            raise ValueError(f"suffix must be from 0 to 20 letters, not {self.suffix}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be a probability below 1, not {self.dropout}")


_CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_WORD_ID = re.compile(r"[1-9][0-9]*")
_RANGE_OR_EMPTY_NODE_ID = re.compile(r"[0-9]+[-.][0-9]+")
_FIRST_CONLLU_LINE = re.compile(r"(1|1-[0-9]+|0\.1)(\t[^\t]+){9}")

WordColumns = tuple[str, ...]  # a word, then the other input columns


class TaggedSentence(NamedTuple):
    """A sentence with the label of each word."""

    words: tuple[WordColumns, ...]
    labels: tuple[str, ...]


class _NumberedLine(NamedTuple):
    """A line with its number, from 1."""

    line_number: int
    text: str


class _ColumnSpec(NamedTuple):
    """Columns to read of a line, from 0."""

    is_conllu: bool
    word: int
    inputs: tuple[int, ...]
    label: int | None  # None: the last column

    def count_required_columns(self) -> int:
        """Return the minimum number of columns of a line, without the label."""
        return max(self.word, *self.inputs) + 1 if self.inputs else self.word + 1


def _make_column_spec(settings: TagDataSettings, is_conllu: bool) -> _ColumnSpec:
    """Resolve the columns that the settings name."""
    inputs = tuple(_find_column_index(column, is_conllu) for column in settings.inputs or ())
    if settings.label is None:
        label = _CONLLU_COLUMNS.index("upos") if is_conllu else None
    else:
        label = _find_column_index(settings.label, is_conllu)
    word = _CONLLU_COLUMNS.index("form") if is_conllu else 0
    if len({word, label, *inputs}) < 2 + len(inputs):
        given = f"{list(settings.inputs or ())} and {settings.label}"
        raise UserError(
            f"data.inputs and data.label must be different columns, and not the word's ({word + 1}), not {given}"
        )
    return _ColumnSpec(is_conllu, word, inputs, label)


def _find_column_index(column: Column, is_conllu: bool) -> int:
    """Return the index of a column, from 0."""
    if column in _CONLLU_COLUMNS:
        if is_conllu:
            return _CONLLU_COLUMNS.index(str(column))
        raise UserError(f"only CoNLL-U files have a column named {column!r}; use a number, from 1")
    if not isinstance(column, int):
        raise UserError(
            f"there is no column {column!r}{format_suggestion(column, _CONLLU_COLUMNS)}, or a number from 1"
        )
    if column < 1 or (is_conllu and column > len(_CONLLU_COLUMNS)):
        raise UserError(f"columns are counted from 1{f' to {len(_CONLLU_COLUMNS)}' if is_conllu else ''}, not {column}")
    return column - 1


def read_tagged_sentences(paths: Sequence[Path], settings: TagDataSettings) -> Iterator[TaggedSentence]:
    """Yield the labelled sentences of several files."""
    for path in paths:
        yield from _read_tagged_file(path, settings)


def _read_tagged_file(path: Path, settings: TagDataSettings) -> Iterator[TaggedSentence]:
    """Yield the sentences of one file; CoNLL-U is detected by its first word line."""
    first_lines, lines = _peek_first_word_line(iterate_lines(path))
    spec = _make_column_spec(settings, _detect_conllu(first_lines))
    for sentence in _split_sentences(lines, spec.is_conllu):
        rows = [_parse_labelled_line(line, spec, path) for line in sentence]
        yield TaggedSentence(tuple(row for row, _ in rows), tuple(label for _, label in rows))


def parse_untagged_sentences(
    given: Iterable[str], settings: TagDataSettings, path: Path | None = None
) -> Iterator[tuple[WordColumns, ...]]:
    """Yield the sentences in lines, with or without labels.

    If the model reads words only, each line is a sentence, unless the lines are CoNLL-U.
    """
    first_lines, lines = _peek_first_word_line(given)
    is_conllu = _detect_conllu(first_lines)
    if not settings.inputs and not is_conllu:
        yield from (tuple((word,) for word in line.split()) for line in lines)
        return
    spec = _make_column_spec(settings, is_conllu)
    for sentence in _split_sentences(lines, spec.is_conllu):
        yield tuple(_select_columns(_split_columns(line, spec), line, spec, path) for line in sentence)


def _peek_first_word_line(given: Iterable[str]) -> tuple[list[str], Iterator[str]]:
    """Return the lines up to the first that can be a word's, and an iterator over all lines."""
    lines, first_lines = iter(given), []
    for line in lines:
        first_lines.append(line)
        if line.strip() and not line.startswith("#"):
            break
    return first_lines, chain(first_lines, lines)


def _detect_conllu(ahead: Sequence[str]) -> bool:
    """Return whether the last of `ahead` is a CoNLL-U word: ten tab-separated columns with an id in the first."""
    return bool(ahead) and _FIRST_CONLLU_LINE.fullmatch(ahead[-1]) is not None


def _split_sentences(every: Iterable[str], is_conllu: bool) -> Iterator[list[_NumberedLine]]:
    """Yield the word lines of each sentence; a blank line ends a sentence."""
    sentence: list[_NumberedLine] = []
    for number, line in enumerate(every, 1):
        if not line.strip():
            if sentence:
                yield sentence
            sentence = []
        elif not (is_conllu and (line.startswith("#") or _RANGE_OR_EMPTY_NODE_ID.fullmatch(line.split("\t")[0]))):
            sentence.append(_NumberedLine(number, line))
    if sentence:
        yield sentence


def _split_columns(line: _NumberedLine, spec: _ColumnSpec) -> list[str]:
    return line.text.split("\t") if spec.is_conllu else line.text.split()


def _select_columns(cells: Sequence[str], line: _NumberedLine, spec: _ColumnSpec, path: Path | None) -> WordColumns:
    """Return the word of a line with its other input columns."""
    if spec.is_conllu and (len(cells) != len(_CONLLU_COLUMNS) or not _WORD_ID.fullmatch(cells[0])):
        raise _make_line_error(
            path, line, f"not a CoNLL-U word, which has an id and {len(_CONLLU_COLUMNS)} tab-separated columns"
        )
    if len(cells) < spec.count_required_columns():
        raise _make_line_error(
            path,
            line,
            f"column {spec.count_required_columns()} is needed, but there are {len(cells)}: {short_repr(line.text)}",
        )
    selected = tuple(cells[index] for index in (spec.word, *spec.inputs))
    if not all(map(str.strip, selected)):
        raise _make_line_error(path, line, "an input column is empty")
    return selected


def _parse_labelled_line(line: _NumberedLine, spec: _ColumnSpec, path: Path) -> tuple[WordColumns, str]:
    """Return the word of a line, and its label."""
    cells = _split_columns(line, spec)
    label_index = len(cells) - 1 if spec.label is None else spec.label
    if spec.label is None and label_index < spec.count_required_columns():
        raise _make_line_error(
            path, line, f"no label after the input columns, separated by white space: {short_repr(line.text)}"
        )
    if label_index >= len(cells):
        raise _make_line_error(
            path,
            line,
            f"column {label_index + 1} (data.label) is needed, but there are {len(cells)}: {short_repr(line.text)}",
        )
    if not cells[label_index].strip():
        raise _make_line_error(path, line, "the label is empty")
    return _select_columns(cells, line, spec, path), cells[label_index]


def _make_line_error(path: Path | None, line: _NumberedLine, problem: str) -> UserError:
    where = f"{format_path(path)}:{line.line_number}" if path else f"line {line.line_number}"
    return UserError(f"{where}: {problem}")
