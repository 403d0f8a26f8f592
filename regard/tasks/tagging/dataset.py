"""What a tagger reads of a word, as ids of one vocabulary, and the labels it chooses from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.batch import make_even_slices, pad_rows
from regard.data.dataset import compute_dataset_fingerprint
from regard.data.indexed_dataset import Indices, RaggedArray
from regard.data.sampler import DatasetPart
from regard.errors import UserError
from regard.special_tokens import PAD
from regard.tasks.tagging.conll import Column, TaggedSentence, TagTextSettings, WordColumns

UNKNOWN = ""  # of each kind of feature; none that is read is empty
_VOCABULARY_FILE = "vocabulary.json"


def _list_feature_kinds(settings: TagTextSettings, inputs: Sequence[Column]) -> list[str]:
    """What is read of a word, in order: the word itself comes first."""
    suffixes = [f"suffix {letters}" for letters in range(1, settings.suffix + 1)]
    return ["word", *(f"column {column}" for column in inputs), *suffixes, *(["shape"] if settings.shape else [])]


def extract_word_features(row: WordColumns, settings: TagTextSettings) -> list[str | None]:
    """The value of each kind; None where there is none, as of the last three letters of a word that has two."""
    word = row[0].lower() if settings.lowercase else row[0]
    suffixes = [word[-letters:] if len(word) >= letters else None for letters in range(1, settings.suffix + 1)]
    return [word, *row[1:], *suffixes, *([compute_word_shape(row[0])] if settings.shape else [])]


def compute_word_shape(word: str) -> str:
    """Capitals, small letters, digits, hyphens and other marks, each run of them once: `McDonald-2000` is `AaAa-0`."""
    return "".join(mark for mark, _ in groupby(map(_get_shape_symbol, word)))


def _get_shape_symbol(letter: str) -> str:
    """What stands for a letter in a shape."""
    if letter.isdigit():
        return "0"
    if letter.isalpha():
        return "A" if letter.isupper() else "a"
    return letter if letter == "-" else "."


class TaggingVocabulary:
    """Ids of features, one kind behind the other from 1 on, each with an unknown of its own; and of labels, from 1."""

    def __init__(self, values: Mapping[str, Sequence[str]], labels: Sequence[str], settings: TagTextSettings) -> None:
        """`values` are those of each kind, the unknown first."""
        self.feature_values = {kind: list(of) for kind, of in values.items()}
        self.labels = list(labels)
        self.settings = settings
        self.feature_ids: list[dict[str, int]] = []
        first = PAD + 1
        for of in self.feature_values.values():
            self.feature_ids.append({value: number for number, value in enumerate(of, first)})
            first += len(of)
        self.label_ids = {label: number for number, label in enumerate(self.labels, PAD + 1)}

    @classmethod
    def learn(
        cls, examples: Iterable[TaggedSentence], settings: TagTextSettings, inputs: Sequence[Column]
    ) -> TaggingVocabulary:
        """The most frequent of each kind, if they come often enough; among equals the alphabet decides."""
        names = _list_feature_kinds(settings, inputs)
        counts: list[Counter[str]] = [Counter() for _ in names]
        labels: Counter[str] = Counter()
        for example in examples:
            labels.update(example.labels)
            for row in example.words:
                for count, value in zip(counts, extract_word_features(row, settings), strict=True):
                    if value is not None:
                        count[value] += 1
        values = {
            name: [
                UNKNOWN,
                *(
                    value
                    for value in _sort_by_frequency(count)[: settings.vocabulary]
                    if count[value] >= settings.minimum
                ),
            ]
            for name, count in zip(names, counts, strict=True)
        }
        return cls(values, _sort_by_frequency(labels), settings)

    @property
    def feature_kinds(self) -> list[str]:
        """What is read of a word."""
        return list(self.feature_values)

    @property
    def vocabulary_sizes(self) -> tuple[int, int]:
        """How many ids features have, and labels; PAD counts in both."""
        return 1 + sum(map(len, self.feature_ids)), 1 + len(self.labels)

    def encode(self, words: Sequence[WordColumns]) -> list[int]:
        """The ids of all features of the first word, then of the second, …"""
        return [
            PAD if value is None else ids.get(value, ids[UNKNOWN])
            for row in words
            for ids, value in zip(self.feature_ids, extract_word_features(row, self.settings), strict=True)
        ]

    def encode_labels(self, labels: Sequence[str]) -> list[int]:
        """The ids of labels; PAD for one that is not known, which no loss is asked for."""
        return [self.label_ids.get(label, PAD) for label in labels]

    def save(self, folder: Path) -> None:
        """Writes it into a folder."""
        document = {"features": self.feature_values, "labels": self.labels}
        (folder / _VOCABULARY_FILE).write_text(
            json.dumps(document, ensure_ascii=False, indent=0) + "\n", encoding="utf-8"
        )

    @classmethod
    def load(cls, folder: Path, settings: TagTextSettings, inputs: Sequence[Column]) -> TaggingVocabulary:
        """Reads what `save` wrote."""
        path = folder / _VOCABULARY_FILE
        if not path.is_file():
            raise UserError(f"{path} is missing: the run has no vocabulary")
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is not a vocabulary: it is not JSON") from error
        if not _is_valid_vocabulary(document):
            raise UserError(f"{path} is not a vocabulary: it has no lists of features and labels, each once")
        expected_kinds = _list_feature_kinds(settings, inputs)
        if list(document["features"]) != expected_kinds:
            raise UserError(
                f"{path} is of models that read {', '.join(document['features'])} of a word, not {', '.join(expected_kinds)}"
            )
        return cls(document["features"], document["labels"], settings)


def _sort_by_frequency(counts: Counter[str]) -> list[str]:
    """The most frequent first."""
    return sorted(counts, key=lambda value: (-counts[value], value))


def _is_valid_vocabulary(document: Any) -> bool:
    """Whether this is what `save` writes."""
    if not isinstance(document, dict) or not isinstance(document.get("features"), dict):
        return False
    of_kinds = list(document["features"].values())
    return all(_is_list_of_unique_strings(some) for some in [*of_kinds, document.get("labels")]) and all(
        some[:1] == [UNKNOWN] for some in of_kinds
    )


def _is_list_of_unique_strings(some: Any) -> bool:
    """Whether this is a list of texts, none of them twice."""
    return isinstance(some, list) and all(isinstance(one, str) for one in some) and len(set(some)) == len(some)


class TaggingBatch(NamedTuple):
    """What a tagger takes. B sentences, right-padded."""

    source: Tensor  # B,S,F features of each word
    lengths: Tensor  # B
    target: Tensor  # B,S labels

    def to(self, device: torch.device) -> TaggingBatch:
        """The same on another device."""
        return TaggingBatch(*(tensor.to(device, non_blocking=True) for tensor in self))

    @property
    def num_rows(self) -> int:
        """The number of sentences."""
        return len(self.source)

    @property
    def num_targets(self) -> int:
        """What the loss is a mean over: labels."""
        return int((self.target != PAD).sum())

    @property
    def num_tokens(self) -> int:
        """What speed is measured in: words."""
        return int(self.lengths.sum())

    def split_into(self, count: int) -> list[TaggingBatch]:
        """The same sentences in `count` batches, or as many as there are sentences."""
        return [TaggingBatch(*(tensor[cut] for tensor in self)) for cut in make_even_slices(self.num_rows, count)]


class TaggingDataset:
    """Sentences of a vocabulary's ids; words become unknown at random, a share `dropout` of them."""

    parts: Sequence[DatasetPart] = ()

    def __init__(
        self, sentences: Sequence[TaggedSentence], vocabulary: TaggingVocabulary, dropout: float = 0.0
    ) -> None:
        self.source = RaggedArray.from_rows(vocabulary.encode(sentence.words) for sentence in sentences)
        self.target = RaggedArray.from_rows(vocabulary.encode_labels(sentence.labels) for sentence in sentences)
        self.num_features = len(vocabulary.feature_kinds)
        self.unknown_word_id = vocabulary.feature_ids[0][UNKNOWN]
        self.dropout = dropout
        self.sizes = self.target.lengths.astype(np.int32)
        self.fingerprint = compute_dataset_fingerprint(self.source, self.target)

    def __len__(self) -> int:
        return len(self.target)

    def make_batch(self, rows: Indices, seed: int = 0) -> TaggingBatch:
        """The sentences at `rows`; which words are unknown, the seed decides."""
        source = pad_rows(self.source, rows)[0].reshape(len(rows), -1, self.num_features)
        if self.dropout:
            gone = np.random.default_rng(seed).random(source.shape[:2]) < self.dropout
            source[..., 0][gone & (source[..., 0] != PAD)] = self.unknown_word_id
        target, lengths = pad_rows(self.target, rows)
        return TaggingBatch(*map(torch.from_numpy, (source, lengths, target)))

    def release_memory(self) -> None:
        """Everything is in memory, and stays there."""
