"""Classification data: texts encoded as one sequence or sentence by sentence, BPE dropout, padded batches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.dataset import Batch, Indices, RaggedArray, TrainingDataset
from regard.data.readers.labelled_texts import LabelledText
from regard.errors import UserError
from regard.special_tokens import PAD
from regard.tokenizers.sentence_splitter import split_sentences
from regard.tokenizers.tokenizer import Tokenizer, VocabularySettings, make_vocabulary_file_name
from regard.tokenizers.vocabularies import LabelVocabulary


class TextEncoder(NamedTuple):
    """Encodes a text as one sequence of ids or sentence by sentence, and truncates what is too long."""

    tokenizer: Tokenizer
    is_hierarchical: bool
    language: str
    max_length: int
    max_sentences: int

    def encode_untruncated(self, text: str) -> list[list[int]]:
        """Return the ids of each nonempty sentence, or of the text as one."""
        parts = split_sentences(text, self.language) if self.is_hierarchical else [text]
        encoded = [self.tokenizer.encode(part) for part in parts]
        return [ids for ids in encoded if ids]

    def truncate(self, encoded: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """Return the first `max_sentences` sentences, each cut at `max_length` tokens."""
        return [ids[: self.max_length] for ids in encoded[: self.max_sentences]]


LABELS_FILE = "labels.txt"


class ClassificationVocabulary(NamedTuple):
    """Tokens of the texts, and the labels."""

    encoder: TextEncoder
    labels: LabelVocabulary
    settings: VocabularySettings

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of tokens and of labels."""
        return self.encoder.tokenizer.vocab_size, len(self.labels.names)

    def describe(self) -> str:
        """Return the numbers of tokens and labels as text."""
        return f"vocabulary {self.sizes[0]:,}, {self.sizes[1]} labels"

    def save(self, folder: Path) -> None:
        """Write tokenizer and labels into a folder."""
        self.encoder.tokenizer.save(folder / make_vocabulary_file_name("text", self.settings))
        self.labels.save(folder / LABELS_FILE)

    def encode_labels(self, examples: Sequence[LabelledText]) -> list[int]:
        """Return the ids of the labels, 0 for none; raise UserError with the location of an unknown label."""
        ids = []
        for example in examples:
            try:
                ids.append(self.labels.find_id(example.label) if example.label else 0)
            except UserError as error:
                raise UserError(f"{example.where}: {error}") from error
        return ids


@dataclass(frozen=True)
class ClassificationBatch(Batch):
    """A batch of B right-padded texts; for hierarchical models each has up to N sentences."""

    ids: Tensor  # (B, S) or (B, N, S)
    lengths: Tensor  # (B,) or (B, N); 0 behind the last sentence
    labels: Tensor  # (B,)

    @property
    def num_tokens(self) -> int:
        """Number of tokens without padding, for the training speed."""
        return int(self.lengths.sum())


class ClassificationDataset(TrainingDataset):
    """Encoded texts with label ids; each text is a list of sentences, a single one for flat models."""

    def __init__(
        self, examples: Sequence[LabelledText], vocabulary: ClassificationVocabulary, dropout: float = 0.0
    ) -> None:
        """With BPE `dropout`, the texts of each batch are segmented anew."""
        encoder = vocabulary.encoder
        untruncated = [encoder.encode_untruncated(example.text) for example in examples]
        self.num_cut_sentences = sum(len(ids) > encoder.max_length for document in untruncated for ids in document)
        self.num_cut_texts = sum(len(document) > encoder.max_sentences for document in untruncated)
        documents = list(map(encoder.truncate, untruncated))
        self.sentences = RaggedArray.from_rows(ids for document in documents for ids in document)
        self.offsets = np.cumsum([0, *map(len, documents)])  # index of the first sentence of each text
        self.labels = np.array(vocabulary.encode_labels(examples), dtype=np.int64)
        self.encoder = encoder
        self.dropout = dropout
        longest = [max(map(len, document), default=0) for document in documents]
        self.sizes = np.maximum(np.diff(self.offsets) * np.asarray(longest, dtype=np.int64), 1).astype(np.int32)
        digest = hashlib.sha256()
        for array in (self.sentences.values, self.sentences.offsets, self.offsets, self.labels):
            digest.update(np.asarray(array, dtype=np.int64).tobytes())
        self.fingerprint = digest.hexdigest()

    def describe_truncation(self) -> list[str]:
        """Return how many sentences and texts were cut."""
        noun = "sentences" if self.encoder.is_hierarchical else "texts"
        counts = {
            f"{noun} cut at {self.encoder.max_length} tokens": self.num_cut_sentences,
            f"texts cut at {self.encoder.max_sentences} sentences": self.num_cut_texts,
        }
        return [f"{count:,} {what}" for what, count in counts.items() if count]

    def get_token_ids(self, row: int) -> list[list[int]]:
        """Return the ids of a text, sentence by sentence."""
        return [self.sentences[sentence].tolist() for sentence in range(self.offsets[row], self.offsets[row + 1])]

    def make_batch(self, rows: Indices, seed: int = 0) -> ClassificationBatch:
        """Return the texts at `rows`; `seed` determines BPE dropout."""
        documents: list[list[Sequence[int]]] = [list(self.get_token_ids(int(row))) for row in rows]
        if self.dropout:
            documents = self._apply_bpe_dropout(documents, seed)
        ids, lengths = _pad_documents(documents)
        if not self.encoder.is_hierarchical:
            ids, lengths = ids[:, 0], lengths[:, 0]
        return ClassificationBatch(ids, lengths, torch.from_numpy(self.labels[rows]))

    def _apply_bpe_dropout(self, documents: Sequence[Sequence[Sequence[int]]], seed: int) -> list[list[Sequence[int]]]:
        flat = [ids for document in documents for ids in document]
        resegmented = iter(self.encoder.tokenizer.apply_bpe_dropout(flat, self.dropout, seed))
        return [self.encoder.truncate([next(resegmented) for _ in document]) for document in documents]


def _pad_documents(documents: Sequence[Sequence[Sequence[int]]]) -> tuple[Tensor, Tensor]:
    """Return ids (B, N, S) and sentence lengths (B, N); N and S are at least 1."""
    max_sentences = max([1, *map(len, documents)])
    max_length = max([1, *(len(ids) for document in documents for ids in document)])
    ids = np.full((len(documents), max_sentences, max_length), PAD, dtype=np.int64)
    lengths = np.zeros((len(documents), max_sentences), dtype=np.int64)
    for row, document in enumerate(documents):
        for index, sentence in enumerate(document):
            ids[row, index, : len(sentence)] = sentence
            lengths[row, index] = len(sentence)
    return torch.from_numpy(ids), torch.from_numpy(lengths)
