"""Encoded texts to train on, and their batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.batch import make_even_slices
from regard.data.indexed_dataset import Indices, RaggedArray
from regard.data.sampler import DatasetPart
from regard.special_tokens import PAD
from regard.tokenizers import Tokenizer
from regard.tokenizers.sentence_splitter import split_sentences


class ClassificationBatch(NamedTuple):
    """What a classifier's `summed` takes. B texts, right-padded; sentence by sentence there are N to a text."""

    ids: Tensor  # B,S or B,N,S
    lengths: Tensor  # B or B,N; 0 behind the last sentence
    labels: Tensor  # B

    def to(self, device: torch.device) -> ClassificationBatch:
        """The same on another device."""
        return ClassificationBatch(*(tensor.to(device, non_blocking=True) for tensor in self))

    @property
    def num_rows(self) -> int:
        """The number of texts."""
        return len(self.labels)

    @property
    def num_targets(self) -> int:
        """What the loss is a mean over: texts."""
        return len(self.labels)

    @property
    def num_tokens(self) -> int:
        """What speed is measured in: tokens that are read, padding not counted."""
        return int(self.lengths.sum())

    def split_into(self, count: int) -> list[ClassificationBatch]:
        """The same texts in `count` batches, or as many as there are texts."""
        return [
            ClassificationBatch(*(tensor[cut] for tensor in self)) for cut in make_even_slices(self.num_rows, count)
        ]


class TextEncoder(NamedTuple):
    """How a text becomes ids: as one, or sentence by sentence; what is too long is cut."""

    tokenizer: Tokenizer
    is_hierarchical: bool
    language: str
    max_length: int
    max_sentences: int

    def encode_untruncated(self, text: str) -> list[list[int]]:
        """The ids of each sentence that has any, or of the text as one."""
        parts = split_sentences(text, self.language) if self.is_hierarchical else [text]
        encoded = [self.tokenizer.encode(part) for part in parts]
        return [ids for ids in encoded if ids]

    def truncate(self, encoded: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """The first sentences of it, and of each the first tokens."""
        return [ids[: self.max_length] for ids in encoded[: self.max_sentences]]

    def __call__(self, text: str) -> list[Sequence[int]]:
        """The ids that a model reads."""
        return self.truncate(self.encode_untruncated(text))


class ClassificationDataset:
    """Texts with the ids of their labels; each is a row of sentences, of one where texts are read as one."""

    parts: Sequence[DatasetPart] = ()

    def __init__(
        self,
        documents: Iterable[Sequence[Sequence[int]]],
        labels: Sequence[int],
        encoder: TextEncoder,
        dropout: float = 0.0,
    ) -> None:
        """`dropout` is BPE's: the words of each batch are cut into pieces otherwise."""
        kept = list(documents)
        self.sentences = RaggedArray.from_rows(ids for document in kept for ids in document)
        self.offsets = np.cumsum([0, *map(len, kept)])  # the first sentence of each text
        self.labels = np.asarray(labels, dtype=np.int64)
        self.encoder = encoder
        self.dropout = dropout
        longest = [max(map(len, document), default=0) for document in kept]
        self.sizes = np.maximum(np.diff(self.offsets) * np.asarray(longest, dtype=np.int64), 1).astype(np.int32)
        self.fingerprint = _hash_arrays(self.sentences.values, self.sentences.offsets, self.offsets, self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def get_token_ids(self, row: int) -> list[list[int]]:
        """The ids of a text."""
        return [self.sentences[number].tolist() for number in range(self.offsets[row], self.offsets[row + 1])]

    def make_batch(self, rows: Indices, seed: int = 0) -> ClassificationBatch:
        """The texts at `rows`; with dropout, as the seed has it."""
        documents: list[list[Sequence[int]]] = [list(self.get_token_ids(int(row))) for row in rows]
        if self.dropout:
            documents = self._apply_bpe_dropout(documents, seed)
        ids, lengths = _pad_documents(documents)
        if not self.encoder.is_hierarchical:
            ids, lengths = ids[:, 0], lengths[:, 0]
        return ClassificationBatch(ids, lengths, torch.from_numpy(self.labels[rows]))

    def _apply_bpe_dropout(self, documents: Sequence[Sequence[Sequence[int]]], seed: int) -> list[list[Sequence[int]]]:
        """The same texts cut into other pieces."""
        flat = [ids for document in documents for ids in document]
        others = iter(self.encoder.tokenizer.apply_bpe_dropout(flat, self.dropout, seed))
        return [self.encoder.truncate([next(others) for _ in document]) for document in documents]

    def release_memory(self) -> None:
        """All of it stays in memory."""


def _pad_documents(documents: Sequence[Sequence[Sequence[int]]]) -> tuple[Tensor, Tensor]:
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


def _hash_arrays(*arrays: Indices) -> str:
    """Tells one set of texts from another."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.asarray(array, dtype=np.int64).tobytes())
    return found.hexdigest()
