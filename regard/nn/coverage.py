"""Coverage: how far each source word has been looked at reaches the score (Tu 2016, section 3).

e_ij = v_aᵀ tanh(W_a t_{i-1} + U_a h_j + V_a C_{i-1,j}): the coverage C_{i-1,j} is a second part of the key. `V_a C` is
added to the keys as the score has projected them, so that every score that reads its keys can have it.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.cells import GRUCell


class CoverageState(NamedTuple):
    """What coverage knows of a source between two steps."""

    amount: Tensor  # B,S,C; C_{i-1,j}
    word_features: Tensor  # B,S,·; what depends on h_j alone, computed once a sentence


class Coverage(Protocol):
    """What `Attention` asks of a coverage; any class with these three methods is one."""

    def start(self, keys: Tensor) -> CoverageState:
        """Nothing has been looked at yet: keys B,S,K."""
        ...

    def key_bias(self, amount: Tensor) -> Tensor:
        """V_a C: amounts …,C -> what is added to the projected keys …,·."""
        ...

    def update(self, state: CoverageState, weights: Tensor, query: Tensor) -> CoverageState:
        """After a look with weights B,S by a query B,Q."""
        ...


class LinguisticCoverage(nn.Module):
    """C_{i,j} = C_{i-1,j} + α_ij / Φ_j, with the fertility Φ_j = N·σ(U_f h_j) (Tu 2016, section 3.1.1).

    A word that makes two words of the target may be looked at twice before it counts as done. `size` is the width of
    the score's projected keys, `fertility` is N.
    """

    def __init__(self, key_size: int, size: int, fertility: float = 2.0) -> None:
        super().__init__()
        if fertility <= 0:
            raise ValueError(f"a fertility is more than 0, not {fertility}")
        self.fertility = fertility
        self.weight = nn.Parameter(torch.empty(size, 1))  # V_a
        self.fertility_weight = nn.Parameter(torch.empty(1, key_size))  # U_f
        nn.init.xavier_uniform_(self.weight)
        nn.init.xavier_uniform_(self.fertility_weight)

    def start(self, keys: Tensor) -> CoverageState:
        """Keys B,S,K -> amounts B,S,1 of zero, and the words' fertilities B,S,1."""
        words = self.fertility * torch.sigmoid(F.linear(keys, self.fertility_weight)).clamp(min=1e-4)  # it divides
        return CoverageState(torch.zeros_like(words), words)

    def key_bias(self, amount: Tensor) -> Tensor:
        """V_a C: …,1 -> …,size."""
        return F.linear(amount, self.weight)

    def update(self, state: CoverageState, weights: Tensor, query: Tensor) -> CoverageState:
        """Adds α_ij / Φ_j."""
        return state._replace(amount=state.amount + weights[..., None] / state.word_features)


class NeuralCoverage(nn.Module):
    """C_{i,j} = GRU([α_ij; h_j; t_{i-1}], C_{i-1,j}), `width` numbers a word (Tu 2016, section 3.1.2).

    Of the GRU's input only α_ij and t_{i-1} change from step to step: what it makes of h_j is computed once.
    """

    def __init__(self, query_size: int, key_size: int, size: int, width: int = 10) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"coverage needs at least 1 number a word, not {width}")
        self.input_sizes = [1, key_size, query_size]
        self.cell = GRUCell(sum(self.input_sizes), width)
        self.weight = nn.Parameter(torch.empty(size, width))  # V_a
        nn.init.uniform_(self.weight, -1 / math.sqrt(width), 1 / math.sqrt(width))

    def start(self, keys: Tensor) -> CoverageState:
        """Keys B,S,K -> amounts B,S,width of zero, and the words' share of the gates B,S,3·width."""
        _, of_word, _ = torch.split(self.cell.weight_ih, self.input_sizes, 1)
        words = F.linear(keys, of_word, self.cell.bias_ih)
        return CoverageState(words.new_zeros(*words.shape[:2], self.cell.hidden_size), words)

    def key_bias(self, amount: Tensor) -> Tensor:
        """V_a C: …,width -> …,size."""
        return F.linear(amount, self.weight)

    def update(self, state: CoverageState, weights: Tensor, query: Tensor) -> CoverageState:
        """One step of the GRU at every source word."""
        of_weight, _, of_query = torch.split(self.cell.weight_ih, self.input_sizes, 1)
        gates = state.word_features + F.linear(weights[..., None], of_weight) + F.linear(query, of_query)[:, None]
        return state._replace(amount=self.cell.step_from_projections(gates, state.amount))
