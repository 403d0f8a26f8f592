"""Pairs of sentences, both sides laid end to end, with as much padding behind them as makes batches alike."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.fast.packed.spans import Spans, spans
from regard.special_tokens import PAD

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


def up(count: int, parts: int) -> int:
    """The next number that is a power of two and some of so many parts of it; 0 stays 0."""
    if not count:
        return 0
    step = max(1, (1 << (count.bit_length() - 1)) // parts)
    return math.ceil(count / step) * step


def reach(words: int) -> int:
    """How long sentences of batches that are alike may be, given the longest: a power of two, or one and a half.

    Short ones, for which kernels hold a power of two anyway, do not differ by less than that.
    """
    return max(16, up(words, 1 if words <= 128 else 2))


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
