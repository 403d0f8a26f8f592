"""CoNLL columns and CoNLL-U: sentences with a word on each line, its label and other columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from regard.data.readers.text import format_path, iterate_lines, number_lines
from regard.errors import UserError, format_suggestion, short_repr
from regard.tokenizers.vocabularies import WordColumns

Column = int | str  # number, from 1, or CoNLL-U name


class ColumnNames(NamedTuple):
    """Columns to read besides the word's; None: the last one, or `upos` of CoNLL-U."""

    label: Column | None = None
    inputs: tuple[Column, ...] = ()


_CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_WORD_ID = re.compile(r"[1-9][0-9]*")
_RANGE_OR_EMPTY_NODE_ID = re.compile(r"[0-9]+[-.][0-9]+")
_FIRST_CONLLU_LINE = re.compile(r"(1|1-[0-9]+|0\.1)(\t[^\t]+){9}")


class TaggedSentence(NamedTuple):
    """A sentence with the label of each word."""

    words: tuple[WordColumns, ...]
    labels: tuple[str, ...]


class _Line(NamedTuple):
    """A line of a word: its position, for messages, and its columns."""

    where: str
    text: str
    cells: list[str]

    def make_error(self, problem: str) -> UserError:
        return UserError(f"{self.where}: {problem}")


class _ColumnSpec(NamedTuple):
    """Columns to read of a line, from 0."""

    is_conllu: bool
    inputs: tuple[int, ...]  # the word's, and the others
    label: int | None  # None: the last column


def _make_column_spec(columns: ColumnNames, is_conllu: bool) -> _ColumnSpec:
    """Resolve the names of columns."""
    word, default_label = (_CONLLU_COLUMNS.index("form"), _CONLLU_COLUMNS.index("upos")) if is_conllu else (0, None)
    inputs = (word, *(_find_column_index(column, is_conllu) for column in columns.inputs))
    label = default_label if columns.label is None else _find_column_index(columns.label, is_conllu)
    if len({label, *inputs}) < 1 + len(inputs):
        raise UserError(
            f"data.inputs and data.label must be different columns, and not the word's ({word + 1}), "
            f"not {list(columns.inputs)} and {columns.label}"
        )
    return _ColumnSpec(is_conllu, inputs, label)


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


def read_tagged_sentences(paths: Sequence[Path], columns: ColumnNames) -> Iterator[TaggedSentence]:
    """Yield the labelled sentences of several files."""
    for path in paths:
        is_conllu, lines = _detect_conllu(iterate_lines(path))
        spec = _make_column_spec(columns, is_conllu)
        for sentence in _split_sentences(lines, is_conllu, format_path(path)):
            rows = [_parse_labelled_line(line, spec) for line in sentence]
            yield TaggedSentence(tuple(row for row, _ in rows), tuple(label for _, label in rows))


def parse_untagged_sentences(
    given: Iterable[str], columns: ColumnNames, name: str = ""
) -> Iterator[tuple[WordColumns, ...]]:
    """Yield the sentences in lines, with or without labels.

    If the model reads words only, each line is a sentence, unless the lines are CoNLL-U.
    """
    is_conllu, lines = _detect_conllu(given)
    if not columns.inputs and not is_conllu:
        yield from (tuple((word,) for word in line.split()) for line in lines)
        return
    spec = _make_column_spec(columns, is_conllu)
    for sentence in _split_sentences(lines, is_conllu, name):
        yield tuple(_select_columns(line, spec) for line in sentence)


def _detect_conllu(given: Iterable[str]) -> tuple[bool, Iterator[str]]:
    """Return whether the first line of a word has ten tab-separated columns and an id, and an iterator over all lines.

    Lines are read up to the first one that can be a word's.
    """
    lines, first_lines = iter(given), []
    for line in lines:
        first_lines.append(line)
        if line.strip() and not line.startswith("#"):
            break
    is_conllu = bool(first_lines) and _FIRST_CONLLU_LINE.fullmatch(first_lines[-1]) is not None
    return is_conllu, chain(first_lines, lines)


def _split_sentences(lines: Iterable[str], is_conllu: bool, name: str) -> Iterator[list[_Line]]:
    """Yield the word lines of each sentence; a blank line ends a sentence."""
    sentence: list[_Line] = []
    for where, line in number_lines(lines, name):
        if not line.strip():
            if sentence:
                yield sentence
            sentence = []
        elif not (is_conllu and (line.startswith("#") or _RANGE_OR_EMPTY_NODE_ID.fullmatch(line.split("\t")[0]))):
            sentence.append(_Line(where, line, line.split("\t") if is_conllu else line.split()))
    if sentence:
        yield sentence


def _select_columns(line: _Line, spec: _ColumnSpec) -> WordColumns:
    """Return the word of a line with its other input columns."""
    cells = line.cells
    if spec.is_conllu and (len(cells) != len(_CONLLU_COLUMNS) or not _WORD_ID.fullmatch(cells[0])):
        raise line.make_error(f"not a CoNLL-U word, which has an id and {len(_CONLLU_COLUMNS)} tab-separated columns")
    num_required = max(spec.inputs) + 1
    if len(cells) < num_required:
        raise line.make_error(f"column {num_required} is needed, but there are {len(cells)}: {short_repr(line.text)}")
    selected = tuple(cells[index] for index in spec.inputs)
    if not all(map(str.strip, selected)):
        raise line.make_error("an input column is empty")
    return selected


def _parse_labelled_line(line: _Line, spec: _ColumnSpec) -> tuple[WordColumns, str]:
    """Return the word of a line, and its label."""
    cells = line.cells
    label_index = len(cells) - 1 if spec.label is None else spec.label
    if spec.label is None and label_index <= max(spec.inputs):
        raise line.make_error(f"no label after the input columns, separated by white space: {short_repr(line.text)}")
    if label_index >= len(cells):
        raise line.make_error(
            f"column {label_index + 1} (data.label) is needed, but there are {len(cells)}: {short_repr(line.text)}"
        )
    if not cells[label_index].strip():
        raise line.make_error("the label is empty")
    return _select_columns(line, spec), cells[label_index]
