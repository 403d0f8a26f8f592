"""Packed batches: sentences concatenated without padding, and rounded to sizes that many batches share."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.fast.cuda_graphs.buckets import up
from regard.special_tokens import PAD


class Spans(NamedTuple):
    """Where the words of each sentence lie."""

    starts: Tensor  # B+1, int32; the last is N
    rows: Tensor  # N the sentence of each word
    places: Tensor  # N its place within it
    longest: int  # no sentence has more words

    def pack(self, padded: Tensor) -> Tensor:
        """B,S,… -> N,…"""
        return padded.flatten(0, 1).index_select(0, self.rows * padded.shape[1] + self.places)

    def pad(self, packed: Tensor) -> Tensor:
        """N,… -> B,S,…, zero behind each end."""
        rows = len(self.starts) - 1
        padded = packed.new_zeros(rows * self.longest, *packed.shape[1:])
        filled = padded.index_copy(0, self.rows * self.longest + self.places, packed)
        return filled.view(rows, self.longest, *packed.shape[1:])


def spans(lengths: Tensor, count: int, longest: int) -> Spans:
    """Of so many words in all. Their number is told, not asked of the device, which would have to finish first."""
    starts = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
    rows = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths, output_size=count)
    places = torch.arange(count, device=lengths.device) - starts[rows]
    return Spans(starts.int(), rows, places, longest)


Given = tuple[Tensor, Tensor, Tensor, Tensor]  # source B,S; lengths B; target_in and target_out B,T


class Batch(NamedTuple):
    """What the loss is computed from."""

    source: Tensor  # M ids
    there: Spans
    target_in: Tensor  # N ids
    target_out: Tensor
    here: Spans


class Sizes(NamedTuple):
    """How many pairs there are, and how many words on each side."""

    pairs: int
    source: int
    target: int

    def rounded(self, source: int, target: int) -> Sizes:
        """A little more, so that many batches have the same sizes; the two numbers are the longest sentences.

        Words by a sixteenth at the most, pairs up to a power of two: one without words costs next to nothing, where
        sentences are not so long that they are padded.
        """
        more = Sizes(self.pairs, up(self.source, 16), up(self.target, 16))
        added = max(math.ceil((more.source - self.source) / source), math.ceil((more.target - self.target) / target))
        return more._replace(pairs=up(self.pairs + added, 1))


def packed(source: Tensor, lengths: Tensor, target_in: Tensor, target_out: Tensor, sizes: Sizes, passes: int) -> Batch:
    """A batch of the given sizes, so many times over; what is added to have them is sentences of padding.

    Those take the rows in which no source stands, at the end of the batch, or behind it.
    """
    more = sizes.pairs - len(source)
    if more:
        source, target_in, target_out = (
            F.pad(ids, (0, 0, 0, more), value=PAD) for ids in (source, target_in, target_out)
        )
        lengths = F.pad(lengths, (0, more))
    spare, targets = lengths == 0, present(target_in, target_out)
    sides = ((lengths, source.shape[1], sizes.source), (targets, target_in.shape[1], sizes.target))
    there, here = (spans(laid(some, spare, most, n).repeat(passes), n * passes, most) for some, most, n in sides)

    def words(ids: Tensor, rows: Spans) -> Tensor:
        return rows.pack(ids.repeat(passes, 1))

    return Batch(words(source, there), there, words(target_in, here), words(target_out, here), here)


def present(target_in: Tensor, target_out: Tensor) -> Tensor:
    """The lengths B of targets: up to the last word of either, whatever stands before it."""
    real = (target_in != PAD) | (target_out != PAD)
    return (real * torch.arange(1, real.shape[1] + 1, device=real.device)).amax(1)


def roomy(sizes: Sizes, source: int, target: int) -> list[tuple[int, ...]]:
    """Shapes in which all batches of such sizes have room; the two numbers are as `reach` has them."""
    return [(sizes.pairs, source), (sizes.pairs,), (sizes.pairs, target), (sizes.pairs, target)]


def laid(lengths: Tensor, spare: Tensor, most: int, words: int) -> Tensor:
    """Lengths B of sentences, and in the place of those that are spare so many that there are `words` in all."""
    left = words - lengths.sum() - most * (spare.cumsum(0) - 1)
    return torch.where(spare, left.clamp(0, most), lengths)
