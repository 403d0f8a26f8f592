"""Rounding of shapes, so that batches of similar sizes share kernels and CUDA graphs, and copies to rounded buffers.

| size                                           | rule                                          |
| ---------------------------------------------- | --------------------------------------------- |
| B, T, S of graphed functions; sentences of a   | `round_up`: by an eighth at most              |
| device search                                  |                                               |
| tokens of a packed batch                       | `round_up_to_fraction`: by a sixteenth        |
| pairs of a packed batch                        | `round_up_to_fraction`: to a power of two     |
| longest sentence of a packed batch             | `bucket_length`                               |
| tiles of Triton kernels                        | `next_power_of_two`                           |
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def round_up(size: int) -> int:
    """Round up to a number with at most four significant bits: by an eighth at most."""
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step


def round_up_to_fraction(count: int, parts: int) -> int:
    """Round up to a power of two plus a multiple of its `parts`-th; 0 stays 0."""
    if not count:
        return 0
    step = max(1, (1 << (count.bit_length() - 1)) // parts)
    return math.ceil(count / step) * step


def bucket_length(words: int) -> int:
    """Round up the length of the longest sentence to a power of two, or to one and a half of it above 128.

    Kernels for short sentences use tiles of a power of two anyway.
    """
    return max(16, round_up_to_fraction(words, 1 if words <= 128 else 2))


def next_power_of_two(size: int, least: int = 16) -> int:
    """Return the next power of two, at least `least`."""
    return max(least, 1 << (size - 1).bit_length())


@torch.no_grad()
def copy_padded(buffers: Sequence[Tensor | None], tensors: Sequence[Tensor | None]) -> None:
    """Copy tensors to the leading slices of their buffers, with zeros around them; None is left out."""
    for buffer, tensor in zip(buffers, tensors, strict=True):
        if buffer is not None and tensor is not None:
            if buffer.shape != tensor.shape:
                buffer.zero_()
            leading_slice(buffer, tensor.shape).copy_(tensor)


def leading_slice(buffer: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the part of a buffer that a smaller tensor takes."""
    for dimension, size in enumerate(shape):
        buffer = buffer.narrow(dimension, 0, size)
    return buffer
