"""Scores: how much a query h_t has to do with a key h̄_s (Luong 2015, section 3.1; Bahdanau 2015, section 3.1).

A score is two functions. `project(keys)` is all that can be computed from the keys alone, once a sentence; calling the
score with a query (B,T,Q) compares it with what was projected. Projected keys come as B,S,·, the same for every query,
or, where the alignment looks through a window, as B,T,2D+1,·, gathered for each query at `positions` B,T,2D+1.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Score(Protocol):
    """What `Attention` asks of a score; any class with these two methods is one."""

    def project(self, keys: Tensor) -> Tensor:
        """Keys B,S,K as the score wants them, B,S,·."""
        ...

    def __call__(self, query: Tensor, projected: Tensor, positions: Tensor | None) -> Tensor:
        """Scores B,T,S (or B,T,2D+1) of the query B,T,Q."""
        ...


def _batched_dot(query: Tensor, keys: Tensor) -> Tensor:
    """Inner products of queries B,T,K with keys B,S,K or B,T,2D+1,K: B,T,S or B,T,2D+1."""
    if query.shape[-1] != keys.shape[-1]:
        raise ValueError(
            f"a dot product needs queries and keys of one size: queries have {query.shape[-1]}, keys {keys.shape[-1]}"
        )
    if keys.dim() == 3:
        return query @ keys.transpose(1, 2)
    return (keys @ query[..., None]).squeeze(-1)


class Dot(nn.Module):
    """h_tᵀ h̄_s (Luong's dot)."""

    def project(self, keys: Tensor) -> Tensor:
        """The keys as they are."""
        return keys

    def forward(self, query: Tensor, projected: Tensor, positions: Tensor | None) -> Tensor:
        """Query B,T,K; keys B,S,K -> B,T,S."""
        return _batched_dot(query, projected)


class ScaledDot(nn.Module):
    """qᵀ k / √K (Vaswani 2017, eq. 1)."""

    def project(self, keys: Tensor) -> Tensor:
        """The keys as they are."""
        return keys

    def forward(self, query: Tensor, projected: Tensor, positions: Tensor | None) -> Tensor:
        """Query B,T,K; keys B,S,K -> B,T,S."""
        return _batched_dot(query, projected) / math.sqrt(query.shape[-1])


class General(nn.Module):
    """h_tᵀ W_a h̄_s (Luong's general)."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(query_size, key_size))  # W_a
        nn.init.xavier_uniform_(self.weight)

    def project(self, keys: Tensor) -> Tensor:
        """W_a h̄_s: B,S,K -> B,S,Q."""
        return F.linear(keys, self.weight)

    def forward(self, query: Tensor, projected: Tensor, positions: Tensor | None) -> Tensor:
        """Query B,T,Q; projected keys B,S,Q -> B,T,S."""
        return _batched_dot(query, projected)


class Concat(nn.Module):
    """v_aᵀ tanh(W_q h_t + W_k h̄_s): Luong's concat, W_a = [W_q W_k], and Bahdanau's additive score."""

    def __init__(self, query_size: int, key_size: int, size: int) -> None:
        super().__init__()
        self.query_weight = nn.Parameter(torch.empty(size, query_size))
        self.key_weight = nn.Parameter(torch.empty(size, key_size))
        self.v = nn.Parameter(torch.empty(size))
        nn.init.xavier_uniform_(self.query_weight)
        nn.init.xavier_uniform_(self.key_weight)
        nn.init.uniform_(self.v, -1 / math.sqrt(size), 1 / math.sqrt(size))

    def project(self, keys: Tensor) -> Tensor:
        """W_k h̄_s: B,S,K -> B,S,size."""
        return F.linear(keys, self.key_weight)

    def forward(self, query: Tensor, projected: Tensor, positions: Tensor | None) -> Tensor:
        """Query B,T,Q; projected keys B,S,size -> B,T,S."""
        projected_query = F.linear(query, self.query_weight)[:, :, None]  # B,T,1,size
        keys = projected[:, None] if projected.dim() == 3 else projected  # B,1|T,S,size
        return torch.tanh(projected_query + keys) @ self.v


class Location(nn.Module):
    """Row s of W_a h_t: where to look is read off the query alone (Luong's location, a_t = softmax(W_a h_t)).

    `s` is the absolute position, inside a window too. A source shorter than `max_source` uses the first rows, positions
    past it score −inf and get no weight (the paper's footnote 6).
    """

    def __init__(self, query_size: int, max_source: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_source, query_size))  # W_a
        nn.init.xavier_uniform_(self.weight)

    def project(self, keys: Tensor) -> Tensor:
        """The keys as they are: only their number is used."""
        return keys

    def forward(self, query: Tensor, projected: Tensor, positions: Tensor | None) -> Tensor:
        """Query B,T,Q; keys B,S,· -> B,T,S."""
        max_source = len(self.weight)
        if positions is None:
            rows = F.linear(query, self.weight[: projected.shape[1]])
            return F.pad(rows, (0, projected.shape[1] - rows.shape[2]), value=-torch.inf)
        position_weights = F.embedding(positions.clamp(0, max_source - 1), self.weight)  # B,T,2D+1,Q
        return _batched_dot(query, position_weights).masked_fill(positions >= max_source, -torch.inf)
