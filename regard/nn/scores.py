"""Attention scores: dot, scaled dot, general, concat (additive) and location.

A score compares a query h_t with a key h̄_s (Luong 2015, section 3.1; Bahdanau 2015, section 3.1). `project(keys)`
computes whatever depends on the keys alone, once per sentence; calling the score compares queries (B, T, Q) with the
projected keys. Projected keys are (B, S, ·), shared by all queries, or (B, T, 2D+1, ·), gathered for each query at
`positions` (B, T, 2D+1) if the alignment has a window.

A new score is a class, and an entry in `SCORES` that makes it a value of `model.score`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Score(Protocol):
    """Interface of a score, as `Attention` uses it; any class with these two methods implements it."""

    def project(self, keys: Tensor) -> Tensor:
        """Project keys (B, S, K) to (B, S, ·)."""

    def __call__(self, query: Tensor, projected: Tensor, positions: Tensor | None) -> Tensor:
        """Return scores (B, T, S), or (B, T, 2D+1) in a window, of queries (B, T, Q)."""


def batched_dot(query: Tensor, keys: Tensor) -> Tensor:
    """Return inner products (B, T, S) or (B, T, 2D+1) of queries (B, T, K) with keys (B, S, K) or (B, T, 2D+1, K)."""
    if query.shape[-1] != keys.shape[-1]:
        raise ValueError(
            f"a dot product needs queries and keys of one size: queries have {query.shape[-1]}, keys {keys.shape[-1]}"
        )
    if keys.dim() == 3:
        return query @ keys.transpose(1, 2)
    return (keys @ query[..., None]).squeeze(-1)


class Dot(nn.Module):
    """Dot score: h_tᵀ h̄_s (Luong's dot)."""

    def project(self, keys: Tensor) -> Tensor:
        """Return the keys unchanged."""
        return keys

    def forward(self, query: Tensor, projected: Tensor, positions: Tensor | None) -> Tensor:
        """Return scores (B, T, S) of queries (B, T, K) with keys (B, S, K)."""
        return batched_dot(query, projected)


class ScaledDot(nn.Module):
    """Scaled dot product: qᵀ k / √K (Vaswani 2017, eq. 1)."""

    def project(self, keys: Tensor) -> Tensor:
        """Return the keys unchanged."""
        return keys

    def forward(self, query: Tensor, projected: Tensor, positions: Tensor | None) -> Tensor:
        """Return scores (B, T, S) of queries (B, T, K) with keys (B, S, K)."""
        return batched_dot(query, projected) / math.sqrt(query.shape[-1])


class General(nn.Module):
    """General (bilinear) score: h_tᵀ W_a h̄_s (Luong's general)."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(query_size, key_size))  # W_a
        nn.init.xavier_uniform_(self.weight)

    def project(self, keys: Tensor) -> Tensor:
        """Return W_a h̄_s: (B, S, K) → (B, S, Q)."""
        return F.linear(keys, self.weight)

    def forward(self, query: Tensor, projected: Tensor, positions: Tensor | None) -> Tensor:
        """Return scores (B, T, S) of queries (B, T, Q) with projected keys (B, S, Q)."""
        return batched_dot(query, projected)


class Concat(nn.Module):
    """Concat (additive) score: v_aᵀ tanh(W_q h_t + W_k h̄_s).

    It is Luong's concat with W_a = [W_q W_k], and Bahdanau's score.
    """

    def __init__(self, query_size: int, key_size: int, size: int) -> None:
        super().__init__()
        self.query_weight = nn.Parameter(torch.empty(size, query_size))
        self.key_weight = nn.Parameter(torch.empty(size, key_size))
        self.v = nn.Parameter(torch.empty(size))
        nn.init.xavier_uniform_(self.query_weight)
        nn.init.xavier_uniform_(self.key_weight)
        nn.init.uniform_(self.v, -1 / math.sqrt(size), 1 / math.sqrt(size))

    def project(self, keys: Tensor) -> Tensor:
        """Return W_k h̄_s: (B, S, K) → (B, S, size)."""
        return F.linear(keys, self.key_weight)

    def forward(self, query: Tensor, projected: Tensor, positions: Tensor | None) -> Tensor:
        """Return scores (B, T, S) of queries (B, T, Q) with projected keys (B, S, size)."""
        projected_query = F.linear(query, self.query_weight)[:, :, None]  # (B, T, 1, size)
        keys = projected[:, None] if projected.dim() == 3 else projected  # (B, 1 or T, S, size)
        return torch.tanh(projected_query + keys) @ self.v


class Location(nn.Module):
    """Location score: row s of W_a h_t, from the query alone (Luong's location, a_t = softmax(W_a h_t)).

    `s` is the absolute position, also inside a window. A source shorter than `max_source` uses the first rows;
    positions from `max_source` on score −inf and get no weight (the paper's footnote 6).
    """

    uses_keys = False

    def __init__(self, query_size: int, max_source: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_source, query_size))  # W_a
        nn.init.xavier_uniform_(self.weight)

    def project(self, keys: Tensor) -> Tensor:
        """Return the keys unchanged; only their number is used."""
        return keys

    def forward(self, query: Tensor, projected: Tensor, positions: Tensor | None) -> Tensor:
        """Return scores (B, T, S) of queries (B, T, Q) with keys (B, S, ·)."""
        max_source = len(self.weight)
        if positions is None:
            rows = F.linear(query, self.weight[: projected.shape[1]])
            return F.pad(rows, (0, projected.shape[1] - rows.shape[2]), value=-torch.inf)
        position_weights = F.embedding(positions.clamp(0, max_source - 1), self.weight)  # (B, T, 2D+1, Q)
        return batched_dot(query, position_weights).masked_fill(positions >= max_source, -torch.inf)


# The values of `model.score` in a recipe. A constructor names those of these sizes that it needs: `query_size`,
# `key_size`, `size` (hidden units), `max_source` (positions).
SCORES: dict[str, Callable[..., Score]] = {
    "dot": Dot,
    "general": General,
    "concat": Concat,
    "location": Location,
}


def make_score(constructor: Callable[..., Score], **sizes: int) -> Score:
    """Construct a score with those of the sizes that its parameters name; raise ValueError if it needs others."""
    signature = inspect.signature(constructor)
    arguments = {name: size for name, size in sizes.items() if name in signature.parameters}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ValueError(f"a score is constructed with any of {', '.join(sizes)}, but: {error}") from error
    return constructor(**arguments)


def compute_projected_size(score: Score, key_size: int) -> int:
    """Return the width of a score's projected keys."""
    return score.project(torch.zeros(1, 1, key_size)).shape[-1]
