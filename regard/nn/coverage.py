"""Coverage models for attention: linguistic (with fertility) and neural (Tu 2016, section 3).

e_ij = v_aᵀ tanh(W_a t_{i-1} + U_a h_j + V_a C_{i-1,j}): the coverage C_{i-1,j}, a record of how much source word j has
been attended to so far, enters the score. `V_a C` is added to the projected keys, so every score that uses its keys
supports it. (The coverage penalty of beam search is in `regard.models.hypothesis.Scorer`.)
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.memory import CoverageState
from regard.nn.recurrent import GRUCell


class Coverage(Protocol):
    """Interface of a coverage model, as `Attention` uses it; any class with these three methods implements it."""

    def start(self, keys: Tensor) -> CoverageState:
        """Return zero coverage for keys (B, S, K)."""

    def key_bias(self, amount: Tensor) -> Tensor:
        """Return V_a C, to be added to the projected keys: (…, C) → (…, ·)."""

    def update(self, state: CoverageState, weights: Tensor, query: Tensor) -> CoverageState:
        """Return the coverage after a query (B, Q) has attended with weights (B, S)."""


class LinguisticCoverage(nn.Module):
    """Linguistic coverage C_{i,j} = C_{i-1,j} + α_ij / Φ_j, with fertility Φ_j = N·σ(U_f h_j) (Tu 2016, section 3.1.1).

    A source word that is translated by two target words may be attended to twice before it counts as covered. `size` is
    the width of the score's projected keys, `fertility` is N.
    """

    def __init__(self, key_size: int, size: int, fertility: float = 2.0) -> None:
        super().__init__()
        if fertility <= 0:
            raise ValueError(f"fertility must be greater than 0, not {fertility}")
        self.fertility = fertility
        self.weight = nn.Parameter(torch.empty(size, 1))  # V_a
        self.fertility_weight = nn.Parameter(torch.empty(1, key_size))  # U_f
        nn.init.xavier_uniform_(self.weight)
        nn.init.xavier_uniform_(self.fertility_weight)

    def start(self, keys: Tensor) -> CoverageState:
        """Return coverage 0, (B, S, 1), and the fertilities of the words (B, S, 1) for keys (B, S, K)."""
        # Clamped, because `update` divides by it.
        fertilities = self.fertility * torch.sigmoid(F.linear(keys, self.fertility_weight)).clamp(min=1e-4)
        return CoverageState(torch.zeros_like(fertilities), fertilities)

    def key_bias(self, amount: Tensor) -> Tensor:
        """Return V_a C: (…, 1) → (…, size)."""
        return F.linear(amount, self.weight)

    def update(self, state: CoverageState, weights: Tensor, query: Tensor) -> CoverageState:
        """Add α_ij / Φ_j."""
        return state._replace(amount=state.amount + weights[..., None] / state.word_features)


class NeuralCoverage(nn.Module):
    """Neural coverage C_{i,j} = GRU([α_ij; h_j; t_{i-1}], C_{i-1,j}), `width` numbers a word (Tu 2016, section 3.1.2).

    Only α_ij and t_{i-1} change from step to step, so the projection of h_j is computed once per sentence.
    """

    def __init__(self, query_size: int, key_size: int, size: int, width: int = 10) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width of neural coverage must be at least 1, not {width}")
        self.input_sizes = [1, key_size, query_size]
        self.cell = GRUCell(sum(self.input_sizes), width)
        self.weight = nn.Parameter(torch.empty(size, width))  # V_a
        nn.init.uniform_(self.weight, -1 / math.sqrt(width), 1 / math.sqrt(width))

    def start(self, keys: Tensor) -> CoverageState:
        """Return coverage 0, (B, S, width), and the gate inputs from h_j, (B, S, 3·width), for keys (B, S, K)."""
        _, W_key, _ = torch.split(self.cell.weight_ih, self.input_sizes, 1)
        key_gates = F.linear(keys, W_key, self.cell.bias_ih)
        return CoverageState(key_gates.new_zeros(*key_gates.shape[:2], self.cell.hidden_size), key_gates)

    def key_bias(self, amount: Tensor) -> Tensor:
        """Return V_a C: (…, width) → (…, size)."""
        return F.linear(amount, self.weight)

    def update(self, state: CoverageState, weights: Tensor, query: Tensor) -> CoverageState:
        """Run one GRU step at every source word."""
        W_alpha, _, W_query = torch.split(self.cell.weight_ih, self.input_sizes, 1)
        gates = state.word_features + F.linear(weights[..., None], W_alpha) + F.linear(query, W_query)[:, None]
        return state._replace(amount=self.cell.step_from_projections(gates, state.amount))
