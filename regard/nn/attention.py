"""Attention = score ∘ alignment over a memory: the alignment says where to look, the score how much."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.nn.alignment import Alignment, Drawn
from regard.nn.memory import Attended, Memory
from regard.nn.score import Score


class Attention(nn.Module):
    """c_t = Σ_s a_t(s) v_s, with a_t from the score and the alignment that are handed in.

    `score` and `alignment` are modules with the methods of the protocols `Score` and `Alignment`.
    """

    def __init__(self, score: Score, alignment: Alignment) -> None:
        super().__init__()
        self.score = score
        self.alignment = alignment

    def prepare(self, memory: Memory) -> Memory:
        """The memory with its keys projected; one that has been prepared is given back as it is."""
        if memory.projected is not None:
            return memory
        return memory._replace(projected=self.score.project(memory.keys))

    def forward(self, query: Tensor, memory: Memory, step: int = 0) -> Attended:
        """Query B,T,Q over a memory of S positions; `step` is the index of the first query in the target."""
        memory = self.prepare(memory)
        assert memory.projected is not None
        positions, prior = self.alignment.window(query, memory.mask, step)
        if positions is None:
            scores = self.score(query, memory.projected, None)
            weights, *drawn = sampled(self.alignment.weigh(scores, memory.mask[:, None], prior))
            return Attended(weights @ memory.values, weights, None, *drawn)
        keys, values, mask = look(memory.projected, memory.values, memory.mask, positions)
        weights, *drawn = sampled(self.alignment.weigh(self.score(query, keys, positions), mask, prior))
        return Attended((weights[:, :, None] @ values).squeeze(2), weights, positions, *drawn)


def sampled(found: Tensor | Drawn) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Weights, and what is known of the draw, if they are a sample."""
    return (found, None, None) if isinstance(found, Tensor) else found


def look(keys: Tensor, values: Tensor, mask: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What stands at `positions` B,T,W: keys B,T,W,·, values B,T,W,V, and a mask B,T,W that is False outside."""
    size = mask.shape[1]
    places = positions.clamp(0, size - 1)
    rows = torch.arange(len(positions), device=positions.device)[:, None, None]
    inside = (positions >= 0) & (positions < size) & mask[rows, places]
    at_keys = keys[rows, places]
    return at_keys, at_keys if values is keys else values[rows, places], inside
