"""Sentences laid end to end: N words of B sentences, and where each begins."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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
