"""Vocabularies that are not of tokens: labels of classifiers, and word features and labels of taggers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

from regard.config import Count, Fraction, Range
from regard.errors import UserError, format_suggestion, short_repr
from regard.paths import read_json_object
from regard.special_tokens import PAD

_MAX_LABELS = 1_000_000  # with more, texts were probably read as labels


class LabelVocabulary:
    """Labels in sorted order; a label's id is its index."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = sorted(set(names))
        self.ids = {name: number for number, name in enumerate(self.names)}
        for name in self.names:
            if not is_valid_label(name):
                raise UserError(f"a label is one line of text without tabs, not {short_repr(name)}")
        if not 0 < len(self.names) <= _MAX_LABELS:
            raise UserError(f"the number of labels is between 1 and {_MAX_LABELS:,}, not {len(self.names):,}")

    @classmethod
    def load(cls, path: Path) -> LabelVocabulary:
        """Read the labels that `save` wrote."""
        if not path.is_file():
            raise UserError(f"{path} is missing: the run has no labels")
        try:
            *names, rest = path.read_bytes().decode("utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} does not hold labels: it is not UTF-8") from error
        if rest or not names or names != sorted(set(names)) or not all(map(is_valid_label, names)):
            raise UserError(f"{path} does not hold labels: one a line, each once, in order")
        return cls(names)

    def save(self, path: Path) -> None:
        """Write one label a line; the line number, counted from 0, is the id."""
        path.write_bytes("".join(name + "\n" for name in self.names).encode("utf-8"))

    def find_id(self, name: str) -> int:
        """Return the id of a label; raise a UserError if the vocabulary does not contain it."""
        if name not in self.ids:
            raise UserError(f"there is no label {short_repr(name)}{format_suggestion(name, self.names[:100])}")
        return self.ids[name]


def is_valid_label(name: str) -> bool:
    """Return True if a label is one line without tabs and without white space around it."""
    return name.splitlines() == [name] and name == name.strip() and "\t" not in name


WordColumns = tuple[str, ...]  # a word, then the other input columns


@dataclass(frozen=True, kw_only=True)
class TagTextSettings:
    """The `text` section of a tagging recipe: vocabulary, and the features of a word."""

    kind: Literal["word"] = "word"
    vocabulary: Count = 30000
    minimum: Count = 2
    lowercase: bool = True
    suffix: Annotated[int, Range(0, 20)] = 3  # letters of the longest suffix
    shape: bool = True
    dropout: Fraction = 0.0


UNKNOWN = ""  # value of unknown features of each kind; real values are never empty
_VOCABULARY_FILE = "vocabulary.json"


def _list_feature_kinds(settings: TagTextSettings, inputs: Sequence[int | str]) -> list[str]:
    """Return the kinds of features of a word, in order; the word itself is first."""
    suffixes = [f"suffix {letters}" for letters in range(1, settings.suffix + 1)]
    return ["word", *(f"column {column}" for column in inputs), *suffixes, *(["shape"] if settings.shape else [])]


def extract_word_features(row: WordColumns, settings: TagTextSettings) -> list[str | None]:
    """Return a value for each kind of feature; None if a word is too short for a suffix."""
    word = row[0].lower() if settings.lowercase else row[0]
    suffixes = [word[-letters:] if len(word) >= letters else None for letters in range(1, settings.suffix + 1)]
    return [word, *row[1:], *suffixes, *([compute_word_shape(row[0])] if settings.shape else [])]


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
    ) -> TaggingVocabulary:
        """Build a vocabulary of the most frequent values of each kind, from `minimum` occurrences on.

        Args:
            examples: Words, with their other columns, and labels of each sentence.
            settings: Kinds of features, and limits of the vocabulary.
            inputs: Names of the other columns.
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
        (folder / _VOCABULARY_FILE).write_text(
            json.dumps(document, ensure_ascii=False, indent=0) + "\n", encoding="utf-8"
        )

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
    if not isinstance(document.get("features"), dict):
        return False
    kinds = list(document["features"].values())
    return all(_is_list_of_unique_strings(values) for values in [*kinds, document.get("labels")]) and all(
        values[:1] == [UNKNOWN] for values in kinds
    )


def _is_list_of_unique_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value) and len(set(value)) == len(value)
