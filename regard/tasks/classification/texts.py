"""Encoded texts to train on, and their batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import even
from regard.data.order import Part
from regard.data.ragged import Indices, Ragged
from regard.symbols import PAD
from regard.text import Tokenizer
from regard.text.sentences import sentences


class Batch(NamedTuple):
    """What a classifier's `summed` takes. B texts, right-padded; sentence by sentence there are N to a text."""

    ids: Tensor  # B,S or B,N,S
    lengths: Tensor  # B or B,N; 0 behind the last sentence
    labels: Tensor  # B

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))

    @property
    def rows(self) -> int:
        """The number of texts."""
        return len(self.labels)

    @property
    def targets(self) -> int:
        """What the loss is a mean over: texts."""
        return len(self.labels)

    @property
    def tokens(self) -> int:
        """What speed is measured in: tokens that are read, padding not counted."""
        return int(self.lengths.sum())

    def pieces(self, count: int) -> list[Batch]:
        """The same texts in `count` batches, or as many as there are texts."""
        return [Batch(*(tensor[cut] for tensor in self)) for cut in even(self.rows, count)]


class Encoding(NamedTuple):
    """How a text becomes ids: as one, or sentence by sentence; what is too long is cut."""

    tokenizer: Tokenizer
    by_sentence: bool
    language: str
    max_length: int
    max_sentences: int

    def whole(self, text: str) -> list[list[int]]:
        """The ids of each sentence that has any, or of the text as one."""
        parts = sentences(text, self.language) if self.by_sentence else [text]
        encoded = [self.tokenizer.encode(part) for part in parts]
        return [ids for ids in encoded if ids]

    def cut(self, encoded: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """The first sentences of it, and of each the first tokens."""
        return [ids[: self.max_length] for ids in encoded[: self.max_sentences]]

    def __call__(self, text: str) -> list[Sequence[int]]:
        """The ids that a model reads."""
        return self.cut(self.whole(text))


class Texts:
    """Texts with the ids of their labels; each is a row of sentences, of one where texts are read as one."""

    parts: Sequence[Part] = ()

    def __init__(
        self,
        documents: Iterable[Sequence[Sequence[int]]],
        labels: Sequence[int],
        encoding: Encoding,
        dropout: float = 0.0,
    ) -> None:
        """`dropout` is BPE's: the words of each batch are cut into pieces otherwise."""
        kept = list(documents)
        self.sentences = Ragged.of(ids for document in kept for ids in document)
        self.offsets = np.cumsum([0, *map(len, kept)])  # the first sentence of each text
        self.labels = np.asarray(labels, dtype=np.int64)
        self.encoding = encoding
        self.dropout = dropout
        longest = [max(map(len, document), default=0) for document in kept]
        self.sizes = np.maximum(np.diff(self.offsets) * np.asarray(longest, dtype=np.int64), 1).astype(np.int32)
        self.fingerprint = digest(self.sentences.numbers, self.sentences.offsets, self.offsets, self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def document(self, row: int) -> list[list[int]]:
        """The ids of a text."""
        return [self.sentences[number].tolist() for number in range(self.offsets[row], self.offsets[row + 1])]

    def batch(self, rows: Indices, seed: int = 0) -> Batch:
        """The texts at `rows`; with dropout, as the seed has it."""
        documents: list[list[Sequence[int]]] = [list(self.document(int(row))) for row in rows]
        if self.dropout:
            documents = self.resampled(documents, seed)
        ids, lengths = padded(documents)
        if not self.encoding.by_sentence:
            ids, lengths = ids[:, 0], lengths[:, 0]
        return Batch(ids, lengths, torch.from_numpy(self.labels[rows]))

    def resampled(self, documents: Sequence[Sequence[Sequence[int]]], seed: int) -> list[list[Sequence[int]]]:
        """The same texts cut into other pieces."""
        flat = [ids for document in documents for ids in document]
        others = iter(self.encoding.tokenizer.resample(flat, self.dropout, seed))
        return [self.encoding.cut([next(others) for _ in document]) for document in documents]

    def release(self) -> None:
        """All of it stays in memory."""


def padded(documents: Sequence[Sequence[Sequence[int]]]) -> tuple[Tensor, Tensor]:
    """Ids B,N,S and the lengths of the sentences B,N; one position of padding, at the least."""
    most = max([1, *map(len, documents)])
    longest = max([1, *(len(ids) for document in documents for ids in document)])
    ids = np.full((len(documents), most, longest), PAD, dtype=np.int64)
    lengths = np.zeros((len(documents), most), dtype=np.int64)
    for row, document in enumerate(documents):
        for number, sentence in enumerate(document):
            ids[row, number, : len(sentence)] = sentence
            lengths[row, number] = len(sentence)
    return torch.from_numpy(ids), torch.from_numpy(lengths)


def digest(*arrays: Indices) -> str:
    """Tells one set of texts from another."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.asarray(array, dtype=np.int64).tobytes())
    return found.hexdigest()
