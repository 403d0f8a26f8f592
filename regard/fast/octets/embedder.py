"""Words and positions as the kernels look them up."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from regard.fast.octets.library import Embedding
from regard.models import vaswani2017

FIRST = 256  # positions that are made at a time, at the least


class Embedder:
    """A Transformer's embedding as it is now, without dropout, by a table of words. Threads may share it."""

    def __init__(self, words: Tensor, embedding: vaswani2017.TransformerEmbedding) -> None:
        self.words, self.scale = words, embedding.scale
        self.positions = copy.deepcopy(embedding.positions)
        self.made = torch.empty(0, self.words.shape[1])

    def places(self, count: int) -> Tensor:
        """What so many positions, or more, add to words."""
        made = self.made  # another thread may put a shorter one in its place
        if count > len(made):
            made = self.positions(torch.zeros(1, 2 * count + FIRST, self.words.shape[1], dtype=torch.float32))
            self.made = made = made[0].detach().contiguous()
        return made

    def handed(self, places: Tensor) -> Embedding:
        """For the kernels, which do not keep the places alive."""
        return Embedding(self.words.data_ptr(), places.data_ptr(), len(self.words), self.scale)
