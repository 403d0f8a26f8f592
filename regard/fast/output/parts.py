"""What the loss of an output layer is, whoever takes it: some rows at a time, kernels, or plain PyTorch."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Losses(Protocol):
    """The cross-entropy of an output layer, smoothed, and R-Drop's disagreement of two halves."""

    def __call__(
        self, h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, r_drop: float = 0.0
    ) -> Tensor:
        """H N,D; weight V,D; bias V; ids N, of which PAD counts for nothing -> a scalar, the sum."""
        ...
