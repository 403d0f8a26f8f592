"""Tagging data: sentences of CoNLL columns and CoNLL-U, a word on each line, and the vocabulary of their features."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from regard.config import Count, Fraction, Range
from regard.data.readers.text import format_path, iterate_lines, number_lines
from regard.data.split import BaseDataSettings
from regard.errors import UserError, format_suggestion, short_repr
from regard.paths import read_json_object
from regard.special_tokens import PAD
from regard.tokenizers.words import find_tokens

WordColumns = tuple[str, ...]  # a word, then the other input columns
Column = int | str  # number, from 1, or CoNLL-U name


@dataclass(frozen=True, kw_only=True)
class TagDataSettings(BaseDataSettings):
    """The `data` section of a tagging recipe: files, columns of label and further inputs, and length limits."""

    label: Column | None = None  # None: the last one, or `upos` of CoNLL-U
    inputs: tuple[Column, ...] | None = None
    unlabelled: tuple[str, ...] | None = None
    max_length: Count = 256
    dev_sentences: Count = 1000

    def __post_init__(self) -> None:
        inputs = self.input_columns
        if len(set(inputs)) < len(inputs) or self.label in inputs:
            raise ValueError(f"inputs must be different columns and not include the label, not {list(inputs)}")

    @property
    def input_columns(self) -> tuple[Column, ...]:
        """Columns to read besides the word's and the label's."""
        return self.inputs or ()


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


def _make_column_spec(settings: TagDataSettings, is_conllu: bool) -> _ColumnSpec:
    """Resolve the names of columns."""
    word, default_label = (_CONLLU_COLUMNS.index("form"), _CONLLU_COLUMNS.index("upos")) if is_conllu else (0, None)
    inputs = (word, *(_find_column_index(column, is_conllu) for column in settings.input_columns))
    label = default_label if settings.label is None else _find_column_index(settings.label, is_conllu)
    if len({label, *inputs}) < 1 + len(inputs):
        raise UserError(
            f"data.inputs and data.label must be different columns, and not the word's ({word + 1}), "
            f"not {list(settings.input_columns)} and {settings.label}"
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


def read_tagged_sentences(paths: Sequence[Path], data: TagDataSettings) -> Iterator[TaggedSentence]:
    """Yield the labelled sentences of several files."""
    for path in paths:
        is_conllu, lines = _detect_conllu(iterate_lines(path))
        spec = _make_column_spec(data, is_conllu)
        for sentence in _split_sentences(lines, is_conllu, format_path(path)):
            rows = [_parse_labelled_line(line, spec) for line in sentence]
            yield TaggedSentence(tuple(row for row, _ in rows), tuple(label for _, label in rows))


def parse_untagged_sentences(
    given: Iterable[str], settings: TagDataSettings, name: str = ""
) -> Iterator[tuple[WordColumns, ...]]:
    """Yield the sentences in lines, with or without labels.

    If the model reads words only, each line is a sentence, unless the lines are CoNLL-U.
    """
    is_conllu, lines = _detect_conllu(given)
    if not settings.input_columns and not is_conllu:
        yield from (tuple((word,) for word in line.split()) for line in lines)
        return
    spec = _make_column_spec(settings, is_conllu)
    for sentence in _split_sentences(lines, is_conllu, name):
        yield tuple(_select_columns(line, spec) for line in sentence)


def read_unlabelled_words(paths: Iterable[str]) -> Iterator[list[str]]:
    """Yield the words of each line of texts, or of each sentence of CoNLL-U."""
    for path in paths:
        is_conllu, lines = _detect_conllu(iterate_lines(Path(path)))
        if is_conllu:
            spec = _ColumnSpec(True, (_CONLLU_COLUMNS.index("form"),), None)
            for sentence in _split_sentences(lines, True, path):
                yield [_select_columns(line, spec)[0] for line in sentence]
        else:
            yield from ([token.text for token in find_tokens(line)] for line in lines)


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


@dataclass(frozen=True, kw_only=True)
class TagTextSettings:
    """The `text` section of a tagging recipe: vocabulary, and the features of a word."""

    kind: Literal["word"] = "word"
    vocabulary: Count = 30000
    minimum: Count = 2
    lowercase: bool = True
    prefix: Annotated[int, Range(0, 20)] = 0  # letters of the longest prefix
    suffix: Annotated[int, Range(0, 20)] = 3  # of the longest suffix
    shape: bool = True
    dropout: Fraction = 0.0


UNKNOWN = ""  # value of unknown features of each kind; real values are never empty
_MIN_UNLABELLED = 5  # occurrences of a word that only texts without labels have
_VOCABULARY_FILE = "vocabulary.json"


def _list_feature_kinds(settings: TagTextSettings, inputs: Sequence[int | str]) -> list[str]:
    """Return the kinds of features of a word, in order; the word itself is first."""
    columns = [f"column {column}" for column in inputs]
    suffixes = [f"suffix {letters}" for letters in range(1, settings.suffix + 1)]
    prefixes = [f"prefix {letters}" for letters in range(1, settings.prefix + 1)]
    return ["word", *columns, *suffixes, *(["shape"] if settings.shape else []), *prefixes]


def extract_word_features(row: WordColumns, settings: TagTextSettings) -> list[str | None]:
    """Return a value for each kind of feature; None if a word is too short for a prefix or suffix."""
    word = row[0].lower() if settings.lowercase else row[0]
    suffixes = [word[-letters:] if len(word) >= letters else None for letters in range(1, settings.suffix + 1)]
    prefixes = [word[:letters] if len(word) >= letters else None for letters in range(1, settings.prefix + 1)]
    return [word, *row[1:], *suffixes, *([compute_word_shape(row[0])] if settings.shape else []), *prefixes]


def compute_word_shape(word: str) -> str:
    """Return the shape of a word, repeated symbols merged: `McDonald-2000` becomes `AaAa-0`."""
    return "".join(symbol for symbol, _ in groupby(map(_get_shape_symbol, word)))


def _get_shape_symbol(letter: str) -> str:
    if letter.isdigit():
        return "0"
    if letter.isalpha():
        return "A" if letter.isupper() else "a"
    return letter if letter == "-" else "."


class TaggingVocabulary:
    """Ids of features, numbered from 1 through all kinds, each kind with its own unknown id; and of labels, from 1."""

    def __init__(self, values: Mapping[str, Sequence[str]], labels: Sequence[str], settings: TagTextSettings) -> None:
        """`values` are the values of each kind, beginning with the unknown value."""
        self.feature_values = {kind: list(kind_values) for kind, kind_values in values.items()}
        self.labels = list(labels)
        self.settings = settings
        self.feature_ids: list[dict[str, int]] = []
        first = PAD + 1
        for kind_values in self.feature_values.values():
            self.feature_ids.append({value: index for index, value in enumerate(kind_values, first)})
            first += len(kind_values)
        self.label_ids = {label: index for index, label in enumerate(self.labels, PAD + 1)}

    @classmethod
    def learn(
        cls,
        examples: Iterable[tuple[Sequence[WordColumns], Sequence[str]]],
        settings: TagTextSettings,
        inputs: Sequence[int | str],
        unlabelled: Iterable[str] = (),
    ) -> TaggingVocabulary:
        """Build a vocabulary of the most frequent values of each kind, from `minimum` occurrences on.

        Args:
            examples: Words, with their other columns, and labels of each sentence.
            settings: Kinds of features, and limits of the vocabulary.
            inputs: Names of the other columns.
            unlabelled: More words, each as often as it occurs; they come after those of the examples.
        """
        kinds = _list_feature_kinds(settings, inputs)
        counts: list[Counter[str]] = [Counter() for _ in kinds]
        labels: Counter[str] = Counter()
        for words, word_labels in examples:
            labels.update(word_labels)
            for row in words:
                for count, value in zip(counts, extract_word_features(row, settings), strict=True):
                    if value is not None:
                        count[value] += 1
        values: dict[str, list[str]] = {}
        for kind, count in zip(kinds, counts, strict=True):
            frequent = _sort_by_frequency(count)[: settings.vocabulary]
            values[kind] = [UNKNOWN, *(value for value in frequent if count[value] >= settings.minimum)]
        more = Counter(word.lower() if settings.lowercase else word for word in unlabelled)
        known = set(values[kinds[0]])
        added = (word for word in _sort_by_frequency(more) if more[word] >= _MIN_UNLABELLED and word not in known)
        values[kinds[0]] += islice(added, max(0, settings.vocabulary - len(known)))
        return cls(values, _sort_by_frequency(labels), settings)

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of feature ids and of label ids, including PAD."""
        return 1 + sum(map(len, self.feature_ids)), 1 + len(self.labels)

    def describe(self) -> str:
        """Return the numbers of features and labels as text."""
        return f"{self.sizes[0] - 1:,} features, {len(self.labels):,} labels"

    def encode(self, words: Sequence[WordColumns]) -> list[int]:
        """Return the ids of all features of the first word, then of the second, and so on."""
        return [
            PAD if value is None else ids.get(value, ids[UNKNOWN])
            for row in words
            for ids, value in zip(self.feature_ids, extract_word_features(row, self.settings), strict=True)
        ]

    def encode_labels(self, labels: Sequence[str]) -> list[int]:
        """Return the ids of labels; PAD for unknown ones, which the loss ignores."""
        return [self.label_ids.get(label, PAD) for label in labels]

    def save(self, folder: Path) -> None:
        """Write the vocabulary into a folder."""
        document = {"features": self.feature_values, "labels": self.labels}
        text = json.dumps(document, ensure_ascii=False, indent=0) + "\n"
        (folder / _VOCABULARY_FILE).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, settings: TagTextSettings, inputs: Sequence[int | str]) -> TaggingVocabulary:
        """Read what `save` wrote; raise UserError if the features are not those of the settings."""
        path = folder / _VOCABULARY_FILE
        if not path.is_file():
            raise UserError(f"{path} is missing: the run has no vocabulary")
        document = read_json_object(path)
        if not _is_valid_vocabulary(document):
            raise UserError(f"{path} is not a vocabulary: it must have lists of features and labels, each once")
        expected_kinds = _list_feature_kinds(settings, inputs)
        if list(document["features"]) != expected_kinds:
            raise UserError(
                f"{path} is for models that read {', '.join(document['features'])} of a word, "
                f"not {', '.join(expected_kinds)}"
            )
        return cls(document["features"], document["labels"], settings)


def _sort_by_frequency(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda value: (-counts[value], value))


def _is_valid_vocabulary(document: Mapping[str, Any]) -> bool:
    features, labels = document.get("features"), document.get("labels")
    if not isinstance(features, dict) or not all(map(_is_list_of_unique_strings, [*features.values(), labels])):
        return False
    return all(values[:1] == [UNKNOWN] for values in features.values())


def _is_list_of_unique_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value) and len(set(value)) == len(value)
