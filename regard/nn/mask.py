"""Masks, and the softmax that respects them."""

from __future__ import annotations

import torch
from torch import Tensor


def prefix_mask(lengths: Tensor, size: int) -> Tensor:
    """True for the first `lengths[b]` of `size` positions: B -> B,size."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension, over the positions where `mask` is True and the score is not −inf.

    The others get a weight of exactly 0. A row with no position left is all zeros, and so is its gradient: the lowest
    finite number stands in for −inf, since a softmax over nothing but −inf is NaN, forward and backward.
    """
    out = ~mask | (scores == -torch.inf)
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(out, lowest).softmax(-1).masked_fill(out, 0.0)
