"""Multi-head attention (Vaswani 2017, section 3.2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.mask import masked_softmax
from regard.nn.memory import Attended, Memory, fold_beams, repeat_rows, unfold_beams


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
        attended = self.attend_projected(
            fold_beams(query, rows), repeat_rows(projected, rows), repeat_rows(memory.mask, rows), causal
        )
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
