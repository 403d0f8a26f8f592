"""Series to train on, scaled, and their batches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import even
from regard.data.order import Part
from regard.data.ragged import Indices
from regard.tasks.regression.files import Series, Table
from regard.tasks.regression.scale import Scales


class Batch(NamedTuple):
    """What a regressor takes: B series, right-padded with zeros."""

    source: Tensor  # B,S,I
    lengths: Tensor  # B
    target: Tensor  # B,S,O

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))

    @property
    def rows(self) -> int:
        """The number of series."""
        return len(self.source)

    @property
    def targets(self) -> int:
        """What the loss is a mean over: the numbers to be found."""
        return self.tokens * self.target.shape[2]

    @property
    def tokens(self) -> int:
        """What speed is measured in: steps of time."""
        return int(self.lengths.sum())

    def pieces(self, count: int) -> list[Batch]:
        """The same series in `count` batches, or as many as there are series."""
        return [Batch(*(tensor[cut] for tensor in self)) for cut in even(self.rows, count)]


class Examples:
    """Series in the scale of the training data, all in memory; one without targets has zeros for them."""

    parts: Sequence[Part] = ()

    def __init__(self, series: Sequence[Series], scales: Scales) -> None:
        self.width = scales.sizes[1]
        self.source = [scales.inputs.standard(one.inputs) for one in series]
        self.target = [
            np.zeros((len(one.inputs), self.width)) if one.targets is None else scales.targets.standard(one.targets)
            for one in series
        ]
        self.sizes = np.array([len(one) for one in self.source], dtype=np.int32)
        found = hashlib.sha256(self.sizes.tobytes())
        for table in (*self.source, *self.target):
            found.update(np.ascontiguousarray(table).data)
        self.fingerprint = found.hexdigest()

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, rows: Indices, seed: int = 0) -> Batch:
        """The series at `rows`; nothing varies from one look to the next."""
        lengths = torch.from_numpy(self.sizes[rows].astype(np.int64))
        return Batch(padded(self.source, rows), lengths, padded(self.target, rows))

    def release(self) -> None:
        """Everything is in memory, and stays there."""


def padded(tables: Sequence[Table], rows: Indices) -> Tensor:
    """Some tables in one, zeros behind each."""
    chosen = [tables[row] for row in rows.tolist()]
    found = np.zeros((len(chosen), max(map(len, chosen)), chosen[0].shape[1]), dtype=np.float32)
    for place, own in enumerate(chosen):
        found[place, : len(own)] = own
    return torch.from_numpy(found)
