"""Positional encodings: sinusoidal, learned, none (Vaswani 2017, section 3.5).

A positional encoding is a module that is called with x (B, T, size) and the index of its first position, one for all
rows or (B,), and returns x with the encoding added.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SinusoidalPositions(nn.Module):
    """Sinusoidal encoding: PE(pos, 2i) = sin(pos / 10000^{2i/size}) and PE(pos, 2i+1) = cos(pos / 10000^{2i/size})."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor, step: int | Tensor = 0) -> Tensor:
        """Add the encoding to x (B, T, size); `step` is the index of its first position, one for all rows or (B,)."""
        return x + sinusoidal_table(step, x.shape[1], self.size, x.device).to(x.dtype)


class LearnedPositions(nn.Module):
    """Learned position embeddings (Vaswani 2017, table 3, row E); positions beyond the last one use its vector.

    The initial variance is ½, the mean square of a sinusoid.
    """

    def __init__(self, size: int, max_positions: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(max_positions, size) * math.sqrt(0.5))

    def forward(self, x: Tensor, step: int | Tensor = 0) -> Tensor:
        """Add the embeddings to x (B, T, size); `step` is the index of its first position, one for all rows or (B,)."""
        return x + F.embedding(position_ids(step, x.shape[1], x.device).clamp(max=len(self.weight) - 1), self.weight)


class NoPositions(nn.Module):
    """Identity, for a model without positional encoding."""

    def forward(self, x: Tensor, step: int | Tensor = 0) -> Tensor:
        """Return x unchanged."""
        return x


def sinusoidal_table(first: int | Tensor, count: int, size: int, device: torch.device) -> Tensor:
    """Return PE for `count` positions from `first` on: (count, size), or (B, count, size) if `first` is (B,)."""
    position = position_ids(first, count, device).float()[..., None]
    frequency = torch.exp(torch.arange(0, size, 2, device=device) * (-math.log(10000.0) / size))
    angles = position * frequency
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)[..., :size]


def position_ids(first: int | Tensor, count: int, device: torch.device) -> Tensor:
    """Return the indices of `count` positions from `first` on: (count,), or (B, count) if `first` is (B,)."""
    return torch.arange(count, device=device) + (first if isinstance(first, int) else first[:, None])
