"""Attention = score ∘ alignment over a memory: the alignment says where to look, the score how much."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.nn.alignment import Alignment, Drawn
from regard.nn.coverage import Coverage, Covered
from regard.nn.memory import Attended, Memory, gathered, parted, spread
from regard.nn.score import Score


class Attention(nn.Module):
    """c_t = Σ_s a_t(s) v_s, with a_t from the score and the alignment that are handed in.

    `score` and `alignment` are modules with the methods of the protocols `Score` and `Alignment`. With a `coverage`
    the score also sees how far each position has been looked at: `follow` leads the memory from one step to the next.
    """

    def __init__(self, score: Score, alignment: Alignment, coverage: Coverage | None = None) -> None:
        super().__init__()
        self.score = score
        self.alignment = alignment
        self.coverage = coverage

    def prepare(self, memory: Memory) -> Memory:
        """The memory with its keys projected, and nothing covered yet; a prepared one is given back as it is."""
        if memory.is_prepared(self):
            return memory
        covered = None if self.coverage is None else self.coverage.start(memory.keys)
        return memory._replace(projected=self.score.project(memory.keys), covered=covered, owner=self)

    def forward(self, query: Tensor, memory: Memory, step: int | Tensor = 0) -> Attended:
        """Query B,T,Q over a memory of S positions; `step` is the index of the first query in the target."""
        if query.dim() != 3:
            raise ValueError(f"a query is B,T,Q, not {tuple(query.shape)}; one of each row is query[:, None]")
        memory = self.prepare(memory)
        assert memory.projected is not None
        if self.coverage is not None and query.shape[1] != 1:
            raise ValueError(f"attention with coverage takes one query at a time, not {query.shape[1]}")
        positions, prior = self.alignment.window(query, spread(memory.mask, query.shape[0]), step)
        if positions is None:
            return self.everywhere(query, memory, prior)
        keys, values, mask = look(memory.projected, memory.values, memory.mask, positions)
        keys = self.marked(keys, memory.covered, positions)
        weights, *drawn = sampled(self.alignment.weigh(self.score(query, keys, positions), mask, prior))
        return Attended((weights[:, :, None] @ values).squeeze(2), weights, positions, *drawn)

    def everywhere(self, query: Tensor, memory: Memory, prior: Tensor | None) -> Attended:
        """A look at the whole source; queries that share a row of the memory look at it together."""
        assert memory.projected is not None
        rows = query.shape[0] if self.coverage else memory.mask.shape[0]
        keys = self.marked(spread(memory.projected, rows), memory.covered, None)
        mask, values = spread(memory.mask, rows)[:, None], spread(memory.values, rows)
        if prior is not None:
            prior = gathered(prior.expand(*query.shape[:2], -1), rows)
        weights, *drawn = sampled(self.alignment.weigh(self.score(gathered(query, rows), keys, None), mask, prior))
        return parted(Attended(weights @ values, weights, None, *drawn), query.shape[0])

    def marked(self, keys: Tensor, covered: Covered | None, positions: Tensor | None) -> Tensor:
        """Projected keys, with what the coverage says of each; those of a window are at `positions`."""
        if self.coverage is None:
            return keys
        if covered is None:
            raise ValueError("this memory was prepared by an attention without coverage")
        return keys + self.coverage.key(covered.amount if positions is None else at(covered.amount, positions))

    def follow(self, memory: Memory, query: Tensor, attended: Attended) -> Memory:
        """The memory for the next step, after the query B,1,Q has looked."""
        if self.coverage is None or memory.covered is None:
            return memory
        weights = attended.dense(memory.mask.shape[1])[:, 0]
        return memory._replace(covered=self.coverage.after(memory.covered, weights, query[:, 0]))


def sampled(found: Tensor | Drawn) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Weights, and what is known of the draw, if they are a sample."""
    return (found, None, None) if isinstance(found, Tensor) else found


def look(keys: Tensor, values: Tensor, mask: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What stands at `positions` B,T,W: keys B,T,W,·, values B,T,W,V, and a mask B,T,W that is False outside."""
    inside = (positions >= 0) & (positions < mask.shape[1]) & at(mask, positions)
    at_keys = at(keys, positions)
    return at_keys, at_keys if values is keys else at(values, positions), inside


def at(rows: Tensor, positions: Tensor) -> Tensor:
    """Rows B,S,… at `positions` B,T,W: B,T,W,…; a position outside takes the row at the border."""
    if not rows.shape[1] or not rows.shape[0]:
        return rows.new_zeros(*positions.shape, *rows.shape[2:])
    shared = positions.shape[0] // rows.shape[0]
    batch = torch.arange(positions.shape[0], device=positions.device)[:, None, None] // shared
    return rows[batch, positions.clamp(0, rows.shape[1] - 1)]
