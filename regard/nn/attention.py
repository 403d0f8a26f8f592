"""Attention over a memory: a score with an alignment (global, local or hard) and optionally coverage; multi-head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.alignments import Alignment, HardSample
from regard.nn.coverage import Coverage
from regard.nn.memory import Attended, CoverageState, Memory, fold_beams, masked_softmax, repeat_rows, unfold_beams
from regard.nn.scores import Score


class Attention(nn.Module):
    """Attention c_t = Σ_s a_t(s) v_s, with a_t from the given score and alignment.

    `score` and `alignment` are modules with the methods of the protocols `Score` and `Alignment`. With a `coverage`,
    the score also depends on how much each position has been attended to; call `update_coverage` after every step.
    """

    def __init__(self, score: Score, alignment: Alignment, coverage: Coverage | None = None) -> None:
        super().__init__()
        self.score = score
        self.alignment = alignment
        self.coverage = coverage

    def prepare(self, memory: Memory) -> Memory:
        """Return the memory with projected keys and zero coverage.

        A memory that is already prepared is returned unchanged.
        """
        if memory.is_prepared(self):
            return memory
        coverage_state = None if self.coverage is None else self.coverage.start(memory.keys)
        return memory._replace(projected=self.score.project(memory.keys), coverage=coverage_state, owner=self)

    def forward(self, query: Tensor, memory: Memory, step: int | Tensor = 0) -> Attended:
        """Attend to a memory of S positions.

        Args:
            query: queries (B, T, Q); T must be 1 if there is coverage.
            memory: keys and values of the source, prepared or not.
            step: target index of the first query, one for all rows or (B,).
        """
        if query.dim() != 3:
            raise ValueError(
                f"query must have shape (B, T, Q), not {tuple(query.shape)}; for T = 1 pass query[:, None]"
            )
        memory = self.prepare(memory)
        assert memory.projected is not None
        if self.coverage is not None and query.shape[1] != 1:
            raise ValueError(f"attention with coverage takes one query at a time, not {query.shape[1]}")
        positions, prior = self.alignment.window(query, repeat_rows(memory.mask, query.shape[0]), step)
        if positions is None:
            return self._attend_globally(query, memory, prior)
        keys, values, mask = _gather_window(memory.projected, memory.values, memory.mask, positions)
        keys = self._add_coverage(keys, memory.coverage, positions)
        weights, *sample = _unpack_weights(self.alignment.weigh(self.score(query, keys, positions), mask, prior))
        return Attended((weights[:, :, None] @ values).squeeze(2), weights, positions, *sample)

    def _attend_globally(self, query: Tensor, memory: Memory, prior: Tensor | None) -> Attended:
        """Attend to the whole source; hypotheses that share a memory row are computed in one product."""
        assert memory.projected is not None
        rows = query.shape[0] if self.coverage else memory.mask.shape[0]
        keys = self._add_coverage(repeat_rows(memory.projected, rows), memory.coverage, None)
        mask, values = repeat_rows(memory.mask, rows)[:, None], repeat_rows(memory.values, rows)
        if prior is not None:
            prior = fold_beams(prior.expand(*query.shape[:2], -1), rows)
        scores = self.score(fold_beams(query, rows), keys, None)
        weights, *sample = _unpack_weights(self.alignment.weigh(scores, mask, prior))
        return unfold_beams(Attended(weights @ values, weights, None, *sample), query.shape[0])

    def _add_coverage(self, keys: Tensor, coverage_state: CoverageState | None, positions: Tensor | None) -> Tensor:
        """Add the coverage bias to projected keys; `positions` are those of a window."""
        if self.coverage is None:
            return keys
        if coverage_state is None:
            raise ValueError("this memory was prepared by an attention without coverage")
        amount = coverage_state.amount
        return keys + self.coverage.key_bias(amount if positions is None else _gather_positions(amount, positions))

    def update_coverage(self, memory: Memory, query: Tensor, attended: Attended) -> Memory:
        """Return the memory for the next step, after the query (B, 1, Q) has attended to it."""
        if self.coverage is None or memory.coverage is None:
            return memory
        weights = attended.dense(memory.mask.shape[1])[:, 0]
        return memory._replace(coverage=self.coverage.update(memory.coverage, weights, query[:, 0]))


def _unpack_weights(weights_or_sample: Tensor | HardSample) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Unpack to (weights, log_prob, probabilities); the last two are None unless attention is hard."""
    return (weights_or_sample, None, None) if isinstance(weights_or_sample, Tensor) else weights_or_sample


def _gather_window(keys: Tensor, values: Tensor, mask: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gather keys (B, T, W, ·) and values (B, T, W, V) at `positions` (B, T, W).

    The returned mask (B, T, W) is False for padding and for positions outside the sentence.
    """
    inside = (positions >= 0) & (positions < mask.shape[1]) & _gather_positions(mask, positions)
    at_keys = _gather_positions(keys, positions)
    return at_keys, at_keys if values is keys else _gather_positions(values, positions), inside


def _gather_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Gather rows of x (B, S, …) at `positions` (B, T, W) into (B, T, W, …).

    Positions outside are clamped to the border.
    """
    if not x.shape[1] or not x.shape[0]:
        return x.new_zeros(*positions.shape, *x.shape[2:])
    rows_per_memory = positions.shape[0] // x.shape[0]
    batch = torch.arange(positions.shape[0], device=positions.device)[:, None, None] // rows_per_memory
    return x[batch, positions.clamp(0, x.shape[1] - 1)]


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1 … head_h) W^O, head_i = softmax(Q W_i^Q (K W_i^K)ᵀ / √d_k) V W_i^V (eq. 1).

    Parameters are those of `torch.nn.MultiheadAttention`: W^Q, W^K and W^V of all heads are stacked in
    `in_proj_weight`, W^O is `out_proj`.
    """

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        if heads < 1 or size % heads:
            raise ValueError(f"the number of heads must divide the size: {heads} heads, size {size}")
        self.size = size
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * size, size))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * size))
        self.out_proj = nn.Linear(size, size)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def project(self, keys: Tensor, values: Tensor) -> Tensor:
        """Return [K W^K; V W^V], (B, S, 2·size), for keys and values (B, S, size)."""
        _, W_k, W_v = self.in_proj_weight.chunk(3)
        _, b_k, b_v = self.in_proj_bias.chunk(3)
        if values is keys:
            return F.linear(keys, self.in_proj_weight[self.size :], self.in_proj_bias[self.size :])
        return torch.cat((F.linear(keys, W_k, b_k), F.linear(values, W_v, b_v)), -1)

    def prepare(self, memory: Memory) -> Memory:
        """Return the memory with keys and values projected; a memory that is already prepared is returned unchanged."""
        if memory.is_prepared(self):
            return memory
        return memory._replace(projected=self.project(memory.keys, memory.values), owner=self)

    def forward(self, query: Tensor, memory: Memory, causal: bool = False) -> Attended:
        """Attend with queries (B, T, size) to a memory of S positions.

        `causal` aligns the last query with the last key.
        """
        projected = self.prepare(memory).projected
        assert projected is not None
        # The causal mask depends on a query's index within its own row, so rows are repeated instead of folded.
        rows = query.shape[0] if causal else memory.mask.shape[0]
        projected, mask = repeat_rows(projected, rows), repeat_rows(memory.mask, rows)
        attended = self.attend_projected(fold_beams(query, rows), projected, mask, causal)
        return unfold_beams(attended, query.shape[0])

    def attend_projected(self, query: Tensor, projected: Tensor, mask: Tensor, causal: bool = False) -> Attended:
        """Attend to keys and values that are already projected, (B, S, 2·size)."""
        q = self.split_heads(F.linear(query, self.in_proj_weight[: self.size], self.in_proj_bias[: self.size]))
        k, v = (self.split_heads(half) for half in projected.chunk(2, -1))  # (B, heads, S, d_k)
        visible = mask[:, None, None]  # (B, 1, 1, S)
        if causal:
            T, S = query.shape[1], projected.shape[1]
            visible = visible & torch.ones(T, S, dtype=torch.bool, device=mask.device).tril(S - T)
        weights = masked_softmax(q @ k.transpose(2, 3) / math.sqrt(self.size // self.heads), visible)
        heads = (weights @ v).transpose(1, 2).flatten(2)  # (B, T, size)
        # A query without any visible position gets a zero context; the bias of W^O alone would make it nonzero.
        context = self.out_proj(heads) * visible.any(-1)[:, 0, :, None]
        return Attended(context, weights)

    def split_heads(self, x: Tensor) -> Tensor:
        """Reshape (B, T, size) to (B, heads, T, size/heads)."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)
