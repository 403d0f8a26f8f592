"""Batches: the base class of every task's batches, and padding and collation of token ids into tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from operator import itemgetter
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from regard.data.indexed_dataset import Indices, Integers, RaggedArray
from regard.special_tokens import BOS, EOS, PAD


@dataclass(frozen=True)
class Batch:
    """Tensors of B examples, in the order of the arguments of the model's loss; an optional one may be None."""

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, field.name) for field in fields(self))

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the batch with a function applied to each tensor."""
        return type(self)(*(None if tensor is None else function(tensor) for tensor in self))

    def to(self, device: torch.device) -> Self:
        """Return the batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """Return the batch in page-locked memory, as PyTorch's data loader asks for it."""
        return self._map(Tensor.pin_memory)

    @property
    def num_rows(self) -> int:
        """Number of examples, B."""
        return len(next(iter(self)))

    @property
    def num_targets(self) -> int:
        """Number of items that the loss is averaged over: tokens, sentences or documents; by default examples."""
        return self.num_rows

    @property
    def num_tokens(self) -> int:
        """Number of tokens without padding, for measuring training speed."""
        raise NotImplementedError

    def split_into(self, count: int) -> list[Self]:
        """Split into `count` micro-batches, or into one for each example if there are fewer examples."""
        return [self._map(itemgetter(rows)) for rows in make_even_slices(self.num_rows, count)]


@dataclass(frozen=True)
class Seq2SeqBatch(Batch):
    """B right-padded sentence pairs."""

    source: Tensor  # (B, S), ends with EOS
    lengths: Tensor  # (B,)
    target_in: Tensor  # (B, T), begins with BOS
    target_out: Tensor  # (B, T), ends with EOS
    guide: Tensor | None = None  # (B, T, S), target attention weights for guided alignment; None without alignments

    @property
    def num_targets(self) -> int:
        """Number of target tokens without padding, over which the loss is averaged."""
        return int((self.target_out != PAD).sum())

    @property
    def num_tokens(self) -> int:
        """Number of tokens for measuring training speed: target tokens without padding."""
        return self.num_targets


def make_even_slices(num_rows: int, count: int) -> list[slice]:
    """Return `count` slices of nearly equal length over the rows, or one for each row if there are fewer rows."""
    ends = np.linspace(0, num_rows, min(count, num_rows) + 1).astype(int)
    return [slice(start, end) for start, end in pairwise(ends)]


def collate(source: RaggedArray, target: RaggedArray, rows: Indices, links: RaggedArray | None = None) -> Seq2SeqBatch:
    """Build the batch of the pairs at `rows`, with a guide for the attention if token links are given."""
    ids, lengths = pad_with_end_id(source, rows, EOS)
    target_in, target_out = pad_and_shift_targets(target, rows)
    guide = None if links is None else torch.from_numpy(_make_guide(links, rows, target_out.shape[1], ids.shape[1]))
    source_in, counts, before, after = map(torch.from_numpy, (ids, lengths, target_in, target_out))
    return Seq2SeqBatch(source_in, counts, before, after, guide)


def pad_and_shift_targets(target: RaggedArray, rows: Indices) -> tuple[Integers, Integers]:
    """Return decoder inputs, which begin with BOS, and expected outputs, which end with EOS, both (B, T)."""
    target_out, _ = pad_with_end_id(target, rows, EOS)
    target_in = np.roll(target_out, 1, axis=1)
    target_in[target_in == EOS] = PAD
    target_in[:, 0] = BOS
    return target_in, target_out


def pad_with_end_id(sentences: RaggedArray, rows: Indices, end_id: int) -> tuple[Integers, Integers]:
    """Return right-padded sentences with `end_id` appended, (B, S), and their lengths, (B,)."""
    padded, lengths = pad_rows(sentences, rows, extra_columns=1)
    padded[np.arange(len(rows)), lengths] = end_id
    return padded, np.asarray(lengths + 1)


def pad_rows(
    ragged: RaggedArray, rows: Indices, fill_value: int = PAD, extra_columns: int = 0
) -> tuple[Integers, Integers]:
    """Return rows right-padded with `fill_value`, (B, S), and their lengths, (B,).

    S is the length of the longest row plus `extra_columns`.
    """
    starts, lengths = ragged.offsets[rows], ragged.offsets[rows + 1] - ragged.offsets[rows]
    columns = np.arange(int(lengths.max()) + extra_columns)
    padded = np.full((len(rows), len(columns)), fill_value, dtype=np.int64)
    is_value = columns < lengths[:, None]
    padded[is_value] = ragged.values[(starts[:, None] + columns)[is_value]]
    return padded, lengths


def _make_guide(links: RaggedArray, rows: Indices, target_length: int, source_length: int) -> Integers:
    """Return (B, T, S): the uniform distribution over each target token's linked source tokens; zeros if unlinked."""
    weights = np.zeros((len(rows), target_length, source_length), dtype=np.float32)
    for index, row in enumerate(rows):
        pairs = links[int(row)].reshape(-1, 2)
        weights[index, pairs[:, 1], pairs[:, 0]] = 1
    weights /= np.maximum(weights.sum(2, keepdims=True), 1)
    return weights
