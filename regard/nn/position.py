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

    def forward(self, x: Tensor, step: int = 0) -> Tensor:
        """X B,T,size, whose first position is number `step`."""
        return x + sinusoids(step, x.shape[1], self.size, x.device).to(x.dtype)


def sinusoids(first: int, count: int, size: int, device: torch.device) -> Tensor:
    """The table PE for `count` positions from `first` on: count,size."""
    position = torch.arange(first, first + count, device=device, dtype=torch.float32)[:, None]
    frequency = torch.exp(torch.arange(0, size, 2, device=device) * (-math.log(10000.0) / size))
    angles = position * frequency
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :size]
