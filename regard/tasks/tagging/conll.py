"""The `data` and `text` sections of a recipe that tags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from regard.data.readers.text_io import format_path, iterate_lines
from regard.data.settings import BaseDataSettings
from regard.errors import UserError, format_suggestion, short_repr

Column = int | str  # its number, from 1, or the name that CoNLL-U has for it


@dataclass(frozen=True, kw_only=True)
class TagDataSettings(BaseDataSettings):
    """Which sentences are trained on, and which columns of a word's line are read."""

    label: Column | None = None
    inputs: tuple[Column, ...] | None = None
    max_length: int = 256
    dev_sentences: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length < 1 or self.dev_sentences < 1:
            raise ValueError(
                f"max_length and dev_sentences are at least 1, not {self.max_length} and {self.dev_sentences}"
            )
        inputs = self.inputs or ()
        if len(set(inputs)) < len(inputs) or self.label in inputs:
            raise ValueError(f"inputs are columns, each once, and not the label, not {list(inputs)}")


@dataclass(frozen=True, kw_only=True)
class TagTextSettings:
    """What is read of a word."""

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
            raise ValueError(f"dropout is a probability below 1, not {self.dropout}")


_CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_WORD_ID, _RANGE_OR_EMPTY_NODE_ID = (
    re.compile(r"[1-9][0-9]*"),
    re.compile(r"[0-9]+[-.][0-9]+"),
)  # ids of words; of ranges and empty nodes
_FIRST_CONLLU_LINE = re.compile(r"(1|1-[0-9]+|0\.1)(\t[^\t]+){9}")

WordColumns = tuple[str, ...]  # a word, then what else is read of it


class TaggedSentence(NamedTuple):
    """A sentence with the label of each word."""

    words: tuple[WordColumns, ...]
    labels: tuple[str, ...]


class _NumberedLine(NamedTuple):
    """A line, and where it stands."""

    line_number: int
    text: str


class _ColumnSpec(NamedTuple):
    """Which columns of a line are read, counted from 0."""

    is_conllu: bool  # CoNLL-U
    word: int
    inputs: tuple[int, ...]
    label: int | None  # None: the last

    def count_required_columns(self) -> int:
        """How many columns a line has at least, its label not counted."""
        return max(self.word, *self.inputs) + 1 if self.inputs else self.word + 1


def _make_column_spec(settings: TagDataSettings, is_conllu: bool) -> _ColumnSpec:
    """The columns that the settings ask for."""
    inputs = tuple(_find_column_index(column, is_conllu) for column in settings.inputs or ())
    if settings.label is None:
        label = _CONLLU_COLUMNS.index("upos") if is_conllu else None
    else:
        label = _find_column_index(settings.label, is_conllu)
    word = _CONLLU_COLUMNS.index("form") if is_conllu else 0
    if len({word, label, *inputs}) < 2 + len(inputs):
        read = f"{list(settings.inputs or ())} and {settings.label}"
        raise UserError(f"data.inputs and data.label are columns beside the word, {word + 1}, each once, not {read}")
    return _ColumnSpec(is_conllu, word, inputs, label)


def _find_column_index(column: Column, is_conllu: bool) -> int:
    """Where a column is, from 0."""
    if column in _CONLLU_COLUMNS:
        if is_conllu:
            return _CONLLU_COLUMNS.index(str(column))
        raise UserError(f"a column is named {column!r} in CoNLL-U alone; in other files it has a number, from 1")
    if not isinstance(column, int):
        raise UserError(
            f"there is no column {column!r}{format_suggestion(column, _CONLLU_COLUMNS)}, or a number from 1 on"
        )
    if column < 1 or (is_conllu and column > len(_CONLLU_COLUMNS)):
        raise UserError(f"columns are counted from 1{f' to {len(_CONLLU_COLUMNS)}' if is_conllu else ''}, not {column}")
    return column - 1


def read_tagged_sentences(paths: Sequence[Path], settings: TagDataSettings) -> Iterator[TaggedSentence]:
    """The sentences of files, one after the other, with their labels."""
    for path in paths:
        yield from _read_tagged_file(path, settings)


def _read_tagged_file(path: Path, settings: TagDataSettings) -> Iterator[TaggedSentence]:
    """Those of one file; CoNLL-U is known by its first word."""
    ahead, every = _peek_first_word_line(iterate_lines(path))
    wanted = _make_column_spec(settings, _detect_conllu(ahead))
    for some in _split_sentences(every, wanted.is_conllu):
        found = [_parse_labelled_line(line, wanted, path) for line in some]
        yield TaggedSentence(tuple(row for row, _ in found), tuple(label for _, label in found))


def parse_untagged_sentences(
    given: Iterable[str], settings: TagDataSettings, path: Path | None = None
) -> Iterator[tuple[WordColumns, ...]]:
    """The sentences that lines hold, which may have labels or not.

    Where nothing but words is read, a line is a sentence, unless the first word is one of CoNLL-U.
    """
    ahead, every = _peek_first_word_line(given)
    universal = _detect_conllu(ahead)
    if not settings.inputs and not universal:
        yield from (tuple((word,) for word in line.split()) for line in every)
        return
    wanted = _make_column_spec(settings, universal)
    for some in _split_sentences(every, wanted.is_conllu):
        yield tuple(_select_columns(_split_columns(line, wanted), line, wanted, path) for line in some)


def _peek_first_word_line(given: Iterable[str]) -> tuple[list[str], Iterator[str]]:
    """The lines up to the first that may be a word's, and all of them."""
    every, ahead = iter(given), []
    for line in every:
        ahead.append(line)
        if line.strip() and not line.startswith("#"):
            break
    return ahead, chain(ahead, every)


def _detect_conllu(ahead: Sequence[str]) -> bool:
    """Whether lines are of CoNLL-U: behind comments, ten columns with a tab between, and an id in the first."""
    return bool(ahead) and _FIRST_CONLLU_LINE.fullmatch(ahead[-1]) is not None


def _split_sentences(every: Iterable[str], is_conllu: bool) -> Iterator[list[_NumberedLine]]:
    """The lines of the words, sentence by sentence: a blank line ends one."""
    some: list[_NumberedLine] = []
    for number, line in enumerate(every, 1):
        if not line.strip():
            if some:
                yield some
            some = []
        elif not (is_conllu and (line.startswith("#") or _RANGE_OR_EMPTY_NODE_ID.fullmatch(line.split("\t")[0]))):
            some.append(_NumberedLine(number, line))
    if some:
        yield some


def _split_columns(line: _NumberedLine, spec: _ColumnSpec) -> list[str]:
    """What stands between tabs in CoNLL-U, between white space elsewhere."""
    return line.text.split("\t") if spec.is_conllu else line.text.split()


def _select_columns(cells: Sequence[str], line: _NumberedLine, spec: _ColumnSpec, path: Path | None) -> WordColumns:
    """The word of a line and what else is read of it."""
    if spec.is_conllu and (len(cells) != len(_CONLLU_COLUMNS) or not _WORD_ID.fullmatch(cells[0])):
        raise _make_line_error(
            path, line, f"not a word of CoNLL-U, which has an id and {len(_CONLLU_COLUMNS)} columns with tabs between"
        )
    if len(cells) < spec.count_required_columns():
        raise _make_line_error(
            path,
            line,
            f"column {spec.count_required_columns()} is to be read, of {len(cells)}: {short_repr(line.text)}",
        )
    chosen = tuple(cells[index] for index in (spec.word, *spec.inputs))
    if not all(map(str.strip, chosen)):
        raise _make_line_error(path, line, "a column that is to be read is empty")
    return chosen


def _parse_labelled_line(line: _NumberedLine, spec: _ColumnSpec, path: Path) -> tuple[WordColumns, str]:
    """The word of a line, and its label."""
    found = _split_columns(line, spec)
    last = len(found) - 1 if spec.label is None else spec.label
    if spec.label is None and last < spec.count_required_columns():
        raise _make_line_error(
            path, line, f"no label behind what is read of a word, white space between: {short_repr(line.text)}"
        )
    if last >= len(found):
        raise _make_line_error(
            path, line, f"the label is in column {last + 1} (data.label), of {len(found)}: {short_repr(line.text)}"
        )
    if not found[last].strip():
        raise _make_line_error(path, line, "the label is empty")
    return _select_columns(found, line, spec, path), found[last]


def _make_line_error(path: Path | None, line: _NumberedLine, problem: str) -> UserError:
    """What is said of a line that cannot be read."""
    where = f"{format_path(path)}:{line.line_number}" if path else f"line {line.line_number}"
    return UserError(f"{where}: {problem}")
