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
        return padded[self.rows, self.places]

    def pad(self, packed: Tensor) -> Tensor:
        """N,… -> B,S,…, zero behind each end."""
        padded = packed.new_zeros(len(self.starts) - 1, self.longest, *packed.shape[1:])
        return padded.index_put((self.rows, self.places), packed)


def spans(lengths: Tensor, count: int, longest: int) -> Spans:
    """Of so many words in all. Their number is told, not asked of the device, which would have to finish first."""
    starts = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
    rows = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths, output_size=count)
    places = torch.arange(count, device=lengths.device) - starts[rows]
    return Spans(starts.int(), rows, places, longest)
