"""What a tagger reads of a word, as ids of one vocabulary, and the labels it chooses from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.symbols import PAD
from regard.tasks.tagging.columns import Row, Tagged
from regard.tasks.tagging.settings import Column, TagTextSettings

UNKNOWN = ""  # of each kind of feature; none that is read is empty
FILE = "vocabulary.json"


def kinds(settings: TagTextSettings, inputs: Sequence[Column]) -> list[str]:
    """What is read of a word, in order: the word itself comes first."""
    suffixes = [f"suffix {letters}" for letters in range(1, settings.suffix + 1)]
    return ["word", *(f"column {column}" for column in inputs), *suffixes, *(["shape"] if settings.shape else [])]


def features(row: Row, settings: TagTextSettings) -> list[str | None]:
    """The value of each kind; None where there is none, as of the last three letters of a word that has two."""
    word = row[0].lower() if settings.lowercase else row[0]
    suffixes = [word[-letters:] if len(word) >= letters else None for letters in range(1, settings.suffix + 1)]
    return [word, *row[1:], *suffixes, *([shape(row[0])] if settings.shape else [])]


def shape(word: str) -> str:
    """Capitals, small letters, digits, hyphens and other marks, each run of them once: `McDonald-2000` is `AaAa-0`."""
    return "".join(mark for mark, _ in groupby(map(mark_of, word)))


def mark_of(letter: str) -> str:
    """What stands for a letter in a shape."""
    if letter.isdigit():
        return "0"
    if letter.isalpha():
        return "A" if letter.isupper() else "a"
    return letter if letter == "-" else "."


class Vocabulary:
    """Ids of features, one kind behind the other from 1 on, each with an unknown of its own; and of labels, from 1."""

    def __init__(self, values: Mapping[str, Sequence[str]], labels: Sequence[str], settings: TagTextSettings) -> None:
        """`values` are those of each kind, the unknown first."""
        self.values = {kind: list(of) for kind, of in values.items()}
        self.labels = list(labels)
        self.settings = settings
        self.ids: list[dict[str, int]] = []
        first = PAD + 1
        for of in self.values.values():
            self.ids.append({value: number for number, value in enumerate(of, first)})
            first += len(of)
        self.numbers = {label: number for number, label in enumerate(self.labels, PAD + 1)}

    @classmethod
    def learn(cls, examples: Iterable[Tagged], settings: TagTextSettings, inputs: Sequence[Column]) -> Vocabulary:
        """The most frequent of each kind, if they come often enough; among equals the alphabet decides."""
        names = kinds(settings, inputs)
        counts: list[Counter[str]] = [Counter() for _ in names]
        labels: Counter[str] = Counter()
        for example in examples:
            labels.update(example.labels)
            for row in example.rows:
                for count, value in zip(counts, features(row, settings), strict=True):
                    if value is not None:
                        count[value] += 1
        values = {
            name: [
                UNKNOWN,
                *(value for value in ranked(count)[: settings.vocabulary] if count[value] >= settings.minimum),
            ]
            for name, count in zip(names, counts, strict=True)
        }
        return cls(values, ranked(labels), settings)

    @property
    def kinds(self) -> list[str]:
        """What is read of a word."""
        return list(self.values)

    @property
    def sizes(self) -> tuple[int, int]:
        """How many ids features have, and labels; PAD counts in both."""
        return 1 + sum(map(len, self.ids)), 1 + len(self.labels)

    def encode(self, rows: Sequence[Row]) -> list[int]:
        """The ids of all features of the first word, then of the second, …"""
        return [
            PAD if value is None else ids.get(value, ids[UNKNOWN])
            for row in rows
            for ids, value in zip(self.ids, features(row, self.settings), strict=True)
        ]

    def encode_labels(self, labels: Sequence[str]) -> list[int]:
        """The ids of labels; PAD for one that is not known, which no loss is asked for."""
        return [self.numbers.get(label, PAD) for label in labels]

    def save(self, folder: Path) -> None:
        """Writes it into a folder."""
        document = {"features": self.values, "labels": self.labels}
        (folder / FILE).write_text(json.dumps(document, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, settings: TagTextSettings, inputs: Sequence[Column]) -> Vocabulary:
        """Reads what `save` wrote."""
        path = folder / FILE
        if not path.is_file():
            raise UserError(f"{path} is missing: the run has no vocabulary")
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is not a vocabulary: it is not JSON") from error
        if not is_whole(document):
            raise UserError(f"{path} is not a vocabulary: it has no lists of features and labels, each once")
        asked = kinds(settings, inputs)
        if list(document["features"]) != asked:
            raise UserError(
                f"{path} is of models that read {', '.join(document['features'])} of a word, not {', '.join(asked)}"
            )
        return cls(document["features"], document["labels"], settings)


def ranked(counts: Counter[str]) -> list[str]:
    """The most frequent first."""
    return sorted(counts, key=lambda value: (-counts[value], value))


def is_whole(document: Any) -> bool:
    """Whether this is what `save` writes."""
    if not isinstance(document, dict) or not isinstance(document.get("features"), dict):
        return False
    of_kinds = list(document["features"].values())
    return all(each_once(some) for some in [*of_kinds, document.get("labels")]) and all(
        some[:1] == [UNKNOWN] for some in of_kinds
    )


def each_once(some: Any) -> bool:
    """Whether this is a list of texts, none of them twice."""
    return isinstance(some, list) and all(isinstance(one, str) for one in some) and len(set(some)) == len(some)
