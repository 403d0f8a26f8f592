"""Encoded sentences to train on, and their batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import even, table
from regard.data.examples import digest
from regard.data.order import Part
from regard.data.ragged import Indices, Ragged
from regard.symbols import PAD
from regard.tasks.tagging.columns import Tagged
from regard.tasks.tagging.vocabulary import UNKNOWN, Vocabulary


class Batch(NamedTuple):
    """What a tagger takes. B sentences, right-padded."""

    source: Tensor  # B,S,F features of each word
    lengths: Tensor  # B
    target: Tensor  # B,S labels

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))

    @property
    def rows(self) -> int:
        """The number of sentences."""
        return len(self.source)

    @property
    def targets(self) -> int:
        """What the loss is a mean over: labels."""
        return int((self.target != PAD).sum())

    @property
    def tokens(self) -> int:
        """What speed is measured in: words."""
        return int(self.lengths.sum())

    def pieces(self, count: int) -> list[Batch]:
        """The same sentences in `count` batches, or as many as there are sentences."""
        return [Batch(*(tensor[cut] for tensor in self)) for cut in even(self.rows, count)]


class Examples:
    """Sentences of a vocabulary's ids; words become unknown at random, a share `dropout` of them."""

    parts: Sequence[Part] = ()

    def __init__(self, sentences: Sequence[Tagged], vocabulary: Vocabulary, dropout: float = 0.0) -> None:
        self.source = Ragged.of(vocabulary.encode(sentence.rows) for sentence in sentences)
        self.target = Ragged.of(vocabulary.encode_labels(sentence.labels) for sentence in sentences)
        self.width = len(vocabulary.kinds)
        self.unknown = vocabulary.ids[0][UNKNOWN]
        self.dropout = dropout
        self.sizes = self.target.lengths.astype(np.int32)
        self.fingerprint = digest(self.source, self.target)

    def __len__(self) -> int:
        return len(self.target)

    def batch(self, rows: Indices, seed: int = 0) -> Batch:
        """The sentences at `rows`; which words are unknown, the seed decides."""
        source = table(self.source, rows)[0].reshape(len(rows), -1, self.width)
        if self.dropout:
            gone = np.random.default_rng(seed).random(source.shape[:2]) < self.dropout
            source[..., 0][gone & (source[..., 0] != PAD)] = self.unknown
        target, lengths = table(self.target, rows)
        return Batch(*map(torch.from_numpy, (source, lengths, target)))

    def release(self) -> None:
        """Everything is in memory, and stays there."""
