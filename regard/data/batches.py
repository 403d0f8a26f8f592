"""Batches: encoded pairs as tensors."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.ragged import Indices, Integers, Ragged
from regard.symbols import BOS, EOS, PAD


class Batch(NamedTuple):
    """What `model.loss` takes. B pairs, right-padded."""

    source: Tensor  # B,S with EOS
    lengths: Tensor  # B
    target_in: Tensor  # B,T from BOS on
    target_out: Tensor  # B,T up to EOS
    guide: Tensor | None = None  # B,T,S where each target token should look, where alignments are given

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        source, lengths, target_in, target_out = (tensor.to(device, non_blocking=True) for tensor in self[:4])
        guide = None if self.guide is None else self.guide.to(device, non_blocking=True)
        return Batch(source, lengths, target_in, target_out, guide)

    @property
    def rows(self) -> int:
        """The number of pairs."""
        return len(self.source)

    @property
    def targets(self) -> int:
        """What the loss is a mean over: target tokens, padding not counted."""
        return int((self.target_out != PAD).sum())

    @property
    def tokens(self) -> int:
        """What speed is measured in: the same."""
        return self.targets

    def pieces(self, count: int) -> list[Batch]:
        """The same pairs in `count` batches, or as many as there are pairs."""
        return [Batch(*(tensor[cut] for tensor in self if tensor is not None)) for cut in even(self.rows, count)]


def even(rows: int, count: int) -> list[slice]:
    """So many rows in `count` parts, or as many as there are rows."""
    ends = np.linspace(0, rows, min(count, rows) + 1).astype(int)
    return [slice(start, end) for start, end in pairwise(ends)]


def collate(source: Ragged, target: Ragged, rows: Indices, links: Ragged | None = None) -> Batch:
    """The pairs at `rows`, with the links of their tokens where they are known."""
    ids, lengths = padded(source, rows, EOS)
    target_in, target_out = shifted(target, rows)
    guide = None if links is None else torch.from_numpy(guides(links, rows, target_out.shape[1], ids.shape[1]))
    source_in, counts, before, after = map(torch.from_numpy, (ids, lengths, target_in, target_out))
    return Batch(source_in, counts, before, after, guide)


def shifted(target: Ragged, rows: Indices) -> tuple[Integers, Integers]:
    """What a decoder reads, from BOS on, and what it is to write, up to EOS: both B,T."""
    target_out, _ = padded(target, rows, EOS)
    target_in = np.roll(target_out, 1, axis=1)
    target_in[target_in == EOS] = PAD
    target_in[:, 0] = BOS
    return target_in, target_out


def padded(sentences: Ragged, rows: Indices, end: int) -> tuple[Integers, Integers]:
    """Sentences with an id at their end, right-padded: B,S and their lengths B."""
    found, lengths = table(sentences, rows, room=1)
    found[np.arange(len(rows)), lengths] = end
    return found, np.asarray(lengths + 1)


def table(ragged: Ragged, rows: Indices, fill: int = PAD, room: int = 0) -> tuple[Integers, Integers]:
    """Rows of numbers, right-padded, the longest with `room` places behind it: B,S and their lengths B."""
    starts, lengths = ragged.offsets[rows], ragged.offsets[rows + 1] - ragged.offsets[rows]
    places = np.arange(int(lengths.max()) + room)
    found = np.full((len(rows), len(places)), fill, dtype=np.int64)
    real = places < lengths[:, None]
    found[real] = ragged.numbers[(starts[:, None] + places)[real]]
    return found, lengths


def guides(links: Ragged, rows: Indices, targets: int, sources: int) -> Integers:
    """B,T,S: each target token's links, evenly weighed; nothing for one without."""
    table = np.zeros((len(rows), targets, sources), dtype=np.float32)
    for place, row in enumerate(rows):
        linked = links[int(row)].reshape(-1, 2)
        table[place, linked[:, 1], linked[:, 0]] = 1
    table /= np.maximum(table.sum(2, keepdims=True), 1)
    return table
