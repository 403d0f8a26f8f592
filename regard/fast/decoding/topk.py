"""Top-k on a CPU, by repeated argmax in NumPy or by block maxima.

`Tensor.topk` on a CPU compares one number at a time; a maximum uses SIMD instructions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from regard.fast.eligibility import fast_paths_enabled

MAX_CACHED_NUMBERS = 500_000  # numbers that fit in the cache of a core, where k passes cost least
MAX_ARGMAX_K = 16  # largest k for repeated argmax
BLOCK = 64  # numbers per block


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row of x (R, V), in descending order, and their indices.

    If a row has fewer than k numbers above −inf, the rest are −inf with meaningless indices.
    """
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64) or not fast_paths_enabled():
        return tuple(x.topk(k, -1))  # type: ignore[return-value]
    if k == 1 or (k <= MAX_ARGMAX_K and x.numel() <= MAX_CACHED_NUMBERS):
        return topk_by_argmax(x, k)
    if x.shape[1] // BLOCK > 4 * k:
        return topk_by_blocks(x, k)
    return tuple(x.topk(k, -1))  # type: ignore[return-value]


def topk_by_argmax(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find one maximum after the other with NumPy, whose argmax is many times as fast as PyTorch's.

    Found numbers are −inf in x meanwhile, and restored at the end: a copy would cost as much as one argmax.
    """
    rows, left = np.arange(len(x)), x.numpy()
    places, values = np.empty((len(x), k), np.int64), np.empty((len(x), k), left.dtype)
    for rank in range(k):
        places[:, rank] = found = left.argmax(1)
        values[:, rank] = left[rows, found]
        if rank + 1 < k:
            left[rows, found] = -np.inf
    for rank in reversed(range(k - 1)):  # an index of −inf may have been found again
        left[rows, places[:, rank]] = values[:, rank]
    return torch.from_numpy(values), torch.from_numpy(places)


def topk_by_blocks(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the blocks with the k largest maxima first: each of the k largest numbers is in one of them."""
    rows, size = x.shape
    blocks = size // BLOCK
    whole = x[:, : blocks * BLOCK].view(rows, blocks, BLOCK)
    likely = whole.amax(-1).topk(k, -1).indices[..., None]  # (R, k, 1)
    values = whole.gather(1, likely.expand(-1, -1, BLOCK)).flatten(1)
    places = (likely * BLOCK + torch.arange(BLOCK)).flatten(1)
    if blocks * BLOCK < size:
        values = torch.cat((values, x[:, blocks * BLOCK :]), 1)
        places = torch.cat((places, torch.arange(blocks * BLOCK, size).expand(rows, -1)), 1)
    largest, chosen = values.topk(k, -1)
    return largest, places.gather(1, chosen)
