"""Encoded questions to train on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import even, table
from regard.data.examples import digest
from regard.data.order import Part
from regard.data.ragged import Indices, Integers, Ragged
from regard.tasks.reading.cloze import NOBODY, Cloze, ids
from regard.text import Words


class Batch(NamedTuple):
    """What the reader's loss takes: B questions, right-padded."""

    document: Tensor  # B,S
    lengths: Tensor  # B
    query: Tensor  # B,Q
    query_lengths: Tensor  # B
    places: Tensor  # B,S the number of the candidate that each word of the document is; -1: none
    answer: Tensor  # B the number of the right one; -1: nobody has said

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))

    @property
    def rows(self) -> int:
        """The number of questions."""
        return len(self.document)

    @property
    def targets(self) -> int:
        """What the loss is a mean over: the same."""
        return self.rows

    @property
    def tokens(self) -> int:
        """What speed is measured in: words that are read."""
        return int(self.lengths.sum() + self.query_lengths.sum())

    def pieces(self, count: int) -> list[Batch]:
        """The same questions in `count` batches, or as many as there are questions."""
        return [Batch(*(tensor[cut] for tensor in self)) for cut in even(self.rows, count)]


class Examples:
    """Questions in numbers, all in memory."""

    parts: tuple[Part, ...] = ()

    def __init__(self, clozes: Iterable[Cloze], vocabulary: Words, blank: str) -> None:
        rows = [encoded(one, vocabulary, blank) for one in clozes]  # whose words need much more room
        self.document, self.query, self.places = (Ragged.of(row[part] for row in rows) for part in range(3))
        self.answers = np.array([row[3][0] for row in rows], dtype=np.int64)
        self.sizes = (self.document.lengths + self.query.lengths).astype(np.int32)
        self.fingerprint = digest(self.document, self.query, self.places, Ragged.of([self.answers]))

    def __len__(self) -> int:
        return len(self.answers)

    def batch(self, rows: Indices, seed: int = 0) -> Batch:
        """The questions at `rows`; nothing varies from one look to the next."""
        document, lengths = table(self.document, rows)
        query, query_lengths = table(self.query, rows)
        places, _ = table(self.places, rows, NOBODY)
        columns = (document, lengths, query, query_lengths, places, self.answers[rows])
        return Batch(*map(torch.from_numpy, columns))

    def release(self) -> None:
        """All of it is needed again."""


def encoded(asked: Cloze, vocabulary: Words, blank: str) -> tuple[Integers, ...]:
    """Document, query, places and answer of a question."""
    answer = NOBODY if asked.answer is None else asked.answer
    columns = ids(asked.document, vocabulary), ids(asked.query, vocabulary, blank), asked.places, [answer]
    return tuple(np.array(column, dtype=np.int32) for column in columns)
