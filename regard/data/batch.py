"""Batches: encoded pairs as tensors."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.indexed_dataset import Indices, Integers, RaggedArray
from regard.special_tokens import BOS, EOS, PAD


class Seq2SeqBatch(NamedTuple):
    """What `model.loss` takes. B pairs, right-padded."""

    source: Tensor  # B,S with EOS
    lengths: Tensor  # B
    target_in: Tensor  # B,T from BOS on
    target_out: Tensor  # B,T up to EOS
    guide: Tensor | None = None  # B,T,S where each target token should look, where alignments are given

    def to(self, device: torch.device) -> Seq2SeqBatch:
        """The same on another device."""
        source, lengths, target_in, target_out = (tensor.to(device, non_blocking=True) for tensor in self[:4])
        guide = None if self.guide is None else self.guide.to(device, non_blocking=True)
        return Seq2SeqBatch(source, lengths, target_in, target_out, guide)

    @property
    def num_rows(self) -> int:
        """The number of pairs."""
        return len(self.source)

    @property
    def num_targets(self) -> int:
        """What the loss is a mean over: target tokens, padding not counted."""
        return int((self.target_out != PAD).sum())

    @property
    def num_tokens(self) -> int:
        """What speed is measured in: the same."""
        return self.num_targets

    def split_into(self, count: int) -> list[Seq2SeqBatch]:
        """The same pairs in `count` batches, or as many as there are pairs."""
        return [
            Seq2SeqBatch(*(tensor[cut] for tensor in self if tensor is not None))
            for cut in make_even_slices(self.num_rows, count)
        ]


def make_even_slices(num_rows: int, count: int) -> list[slice]:
    """So many rows in `count` parts, or as many as there are rows."""
    ends = np.linspace(0, num_rows, min(count, num_rows) + 1).astype(int)
    return [slice(start, end) for start, end in pairwise(ends)]


def collate(source: RaggedArray, target: RaggedArray, rows: Indices, links: RaggedArray | None = None) -> Seq2SeqBatch:
    """The pairs at `rows`, with the links of their tokens where they are known."""
    ids, lengths = pad_with_end_id(source, rows, EOS)
    target_in, target_out = pad_and_shift_targets(target, rows)
    guide = None if links is None else torch.from_numpy(_make_guide(links, rows, target_out.shape[1], ids.shape[1]))
    source_in, counts, before, after = map(torch.from_numpy, (ids, lengths, target_in, target_out))
    return Seq2SeqBatch(source_in, counts, before, after, guide)


def pad_and_shift_targets(target: RaggedArray, rows: Indices) -> tuple[Integers, Integers]:
    """What a decoder reads, from BOS on, and what it is to write, up to EOS: both B,T."""
    target_out, _ = pad_with_end_id(target, rows, EOS)
    target_in = np.roll(target_out, 1, axis=1)
    target_in[target_in == EOS] = PAD
    target_in[:, 0] = BOS
    return target_in, target_out


def pad_with_end_id(sentences: RaggedArray, rows: Indices, end_id: int) -> tuple[Integers, Integers]:
    """Sentences with an id at their end, right-padded: B,S and their lengths B."""
    found, lengths = pad_rows(sentences, rows, extra_columns=1)
    found[np.arange(len(rows)), lengths] = end_id
    return found, np.asarray(lengths + 1)


def pad_rows(
    ragged: RaggedArray, rows: Indices, fill_value: int = PAD, extra_columns: int = 0
) -> tuple[Integers, Integers]:
    """Rows of numbers, right-padded, the longest with `room` places behind it: B,S and their lengths B."""
    starts, lengths = ragged.offsets[rows], ragged.offsets[rows + 1] - ragged.offsets[rows]
    places = np.arange(int(lengths.max()) + extra_columns)
    found = np.full((len(rows), len(places)), fill_value, dtype=np.int64)
    real = places < lengths[:, None]
    found[real] = ragged.values[(starts[:, None] + places)[real]]
    return found, lengths


def _make_guide(links: RaggedArray, rows: Indices, target_length: int, source_length: int) -> Integers:
    """B,T,S: each target token's links, evenly weighed; nothing for one without."""
    table = np.zeros((len(rows), target_length, source_length), dtype=np.float32)
    for place, row in enumerate(rows):
        linked = links[int(row)].reshape(-1, 2)
        table[place, linked[:, 1], linked[:, 0]] = 1
    table /= np.maximum(table.sum(2, keepdims=True), 1)
    return table
