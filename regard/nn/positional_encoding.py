"""Where a word stands (Vaswani 2017, section 3.5).

Positions are a module that is called with x B,T,size and the number of its first place, of all rows or B of each, and
gives x with the places in it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SinusoidalPositions(nn.Module):
    """Adds PE(pos, 2i) = sin(pos / 10000^{2i/size}) and PE(pos, 2i+1) = cos(pos / 10000^{2i/size})."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor, step: int | Tensor = 0) -> Tensor:
        """X B,T,size, whose first position is number `step`, of all rows or B of each."""
        return x + sinusoidal_table(step, x.shape[1], self.size, x.device).to(x.dtype)


class LearnedPositions(nn.Module):
    """Adds a vector of its own for each place (Vaswani 2017, table 3, row E); places past the last share its vector.

    The numbers begin as large as those of sinusoids, whose mean square is a half.
    """

    def __init__(self, size: int, max_positions: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(max_positions, size) * math.sqrt(0.5))

    def forward(self, x: Tensor, step: int | Tensor = 0) -> Tensor:
        """X B,T,size, whose first position is number `step`, of all rows or B of each."""
        return x + F.embedding(position_ids(step, x.shape[1], x.device).clamp(max=len(self.weight) - 1), self.weight)


class NoPositions(nn.Module):
    """Nothing says where a word stands."""

    def forward(self, x: Tensor, step: int | Tensor = 0) -> Tensor:
        """X as it is."""
        return x


def sinusoidal_table(first: int | Tensor, count: int, size: int, device: torch.device) -> Tensor:
    """The table PE for `count` positions from `first` on: count,size, or B,count,size from B first ones."""
    position = position_ids(first, count, device).float()[..., None]
    frequency = torch.exp(torch.arange(0, size, 2, device=device) * (-math.log(10000.0) / size))
    angles = position * frequency
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)[..., :size]


def position_ids(first: int | Tensor, count: int, device: torch.device) -> Tensor:
    """The numbers of `count` steps from `first` on: count, or B,count from B first ones."""
    each = torch.arange(count, device=device)
    return each + (first if isinstance(first, int) else first[:, None])
