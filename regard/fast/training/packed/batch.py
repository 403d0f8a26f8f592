"""Packed batches: sentences concatenated without padding, and rounded to sizes that many batches share."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.fast.cuda_graphs.buckets import round_up_to_fraction
from regard.special_tokens import PAD


class Ragged(NamedTuple):
    """Layout of N tokens of B concatenated sentences."""

    cu_seqlens: Tensor  # (B+1,), int32; the last is N
    seq_ids: Tensor  # (N,), sentence of each token
    positions: Tensor  # (N,), position within its sentence
    max_length: int  # upper bound of the lengths

    def pack(self, padded: Tensor) -> Tensor:
        """Pack (B, S, …) to (N, …)."""
        return padded.flatten(0, 1).index_select(0, self.seq_ids * padded.shape[1] + self.positions)

    def pad(self, packed: Tensor) -> Tensor:
        """Pad (N, …) to (B, S, …) with zeros."""
        rows = len(self.cu_seqlens) - 1
        padded = packed.new_zeros(rows * self.max_length, *packed.shape[1:])
        filled = padded.index_copy(0, self.seq_ids * self.max_length + self.positions, packed)
        return filled.view(rows, self.max_length, *packed.shape[1:])


def make_ragged(lengths: Tensor, count: int, max_length: int) -> Ragged:
    """Return the layout of `count` tokens; reading their number from the device would synchronize."""
    cu_seqlens = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
    seq_ids = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths, output_size=count)
    positions = torch.arange(count, device=lengths.device) - cu_seqlens[seq_ids]
    return Ragged(cu_seqlens.int(), seq_ids, positions, max_length)


class PackedBatch(NamedTuple):
    """Input of the packed loss."""

    source: Tensor  # (M,)
    source_layout: Ragged
    target_in: Tensor  # (N,)
    target_out: Tensor
    target_layout: Ragged


class BatchSize(NamedTuple):
    """Number of pairs, and of tokens on each side."""

    pairs: int
    source: int
    target: int

    def round_up(self, longest_source: int, longest_target: int) -> BatchSize:
        """Round up, so that many batches have the same size; `source` and `target` are the longest sentences.

        Tokens by a sixteenth at most, pairs to a power of two: sentences of padding cost next to nothing, unless they
        are so long that the batch is padded.
        """
        larger = BatchSize(self.pairs, round_up_to_fraction(self.source, 16), round_up_to_fraction(self.target, 16))
        extra_pairs = max(
            math.ceil((larger.source - self.source) / longest_source),
            math.ceil((larger.target - self.target) / longest_target),
        )
        return larger._replace(pairs=round_up_to_fraction(self.pairs + extra_pairs, 1))


def pack_batch(
    source: Tensor, lengths: Tensor, target_in: Tensor, target_out: Tensor, sizes: BatchSize, passes: int
) -> PackedBatch:
    """Return a packed batch of the given size, repeated `passes` times; sentences of padding fill it up.

    These take the rows with empty sources, at the end of the batch or behind it.
    """
    extra = sizes.pairs - len(source)
    source, target_in, target_out = (F.pad(ids, (0, 0, 0, extra), value=PAD) for ids in (source, target_in, target_out))
    lengths, targets = F.pad(lengths, (0, extra)), target_lengths(target_in, target_out)
    is_padding = lengths == 0

    def lay_out(side_lengths: Tensor, longest: int, num_tokens: int) -> Ragged:
        padded_lengths = pad_lengths(side_lengths, is_padding, longest, num_tokens)
        return make_ragged(padded_lengths.repeat(passes), num_tokens * passes, longest)

    source_layout = lay_out(lengths, source.shape[1], sizes.source)
    target_layout = lay_out(targets, target_in.shape[1], sizes.target)
    target_in, target_out = (target_layout.pack(ids.repeat(passes, 1)) for ids in (target_in, target_out))
    source = source_layout.pack(source.repeat(passes, 1))
    return PackedBatch(source, source_layout, target_in, target_out, target_layout)


def target_lengths(target_in: Tensor, target_out: Tensor) -> Tensor:
    """Return the lengths (B,) of targets: up to the last token of input or output."""
    is_token = (target_in != PAD) | (target_out != PAD)
    return (is_token * torch.arange(1, is_token.shape[1] + 1, device=is_token.device)).amax(1)


def pad_lengths(lengths: Tensor, is_padding: Tensor, longest: int, num_tokens: int) -> Tensor:
    """Return lengths (B,) where spare sentences are filled up, so that there are `num_tokens` in all."""
    remaining = num_tokens - lengths.sum() - longest * (is_padding.cumsum(0) - 1)
    return torch.where(is_padding, remaining.clamp(0, longest), lengths)
