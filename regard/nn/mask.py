"""Padding masks and the masked softmax."""

from __future__ import annotations

import torch
from torch import Tensor


def prefix_mask(lengths: Tensor, size: int) -> Tensor:
    """Return a mask (B, size) that is True for the first `lengths[b]` positions of row b."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the softmax over the last dimension, restricted to positions with `mask` True and a score above −inf.

    All other positions get a weight of exactly 0. A row without any position is all zeros, and so is its gradient: the
    lowest finite number replaces −inf, because a softmax over −inf alone is NaN, forward and backward.
    """
    is_masked = ~mask | (scores == -torch.inf)
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(is_masked, lowest).softmax(-1).masked_fill(is_masked, 0.0)
