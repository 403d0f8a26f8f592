"""Where a word stands (Vaswani 2017, section 3.5)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class SinusoidalPositions(nn.Module):
    """Adds PE(pos, 2i) = sin(pos / 10000^{2i/size}) and PE(pos, 2i+1) = cos(pos / 10000^{2i/size})."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor, step: int | Tensor = 0) -> Tensor:
        """X B,T,size, whose first position is number `step`, of all rows or B of each."""
        return x + sinusoids(step, x.shape[1], self.size, x.device).to(x.dtype)


def sinusoids(first: int | Tensor, count: int, size: int, device: torch.device) -> Tensor:
    """The table PE for `count` positions from `first` on: count,size, or B,count,size from B first ones."""
    position = steps(first, count, device).float()[..., None]
    frequency = torch.exp(torch.arange(0, size, 2, device=device) * (-math.log(10000.0) / size))
    angles = position * frequency
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)[..., :size]


def steps(first: int | Tensor, count: int, device: torch.device) -> Tensor:
    """The numbers of `count` steps from `first` on: count, or B,count from B first ones."""
    each = torch.arange(count, device=device)
    return each + (first if isinstance(first, int) else first[:, None])
