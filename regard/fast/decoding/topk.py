"""Top-k on a CPU, by repeated argmax in NumPy or by block maxima.

`Tensor.topk` on a CPU compares one number at a time; a maximum uses SIMD instructions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from regard.fast.eligibility import wanted

FITTING = 500_000  # numbers that lie in a core's cache, where looking at all of them k times costs least
MOST = 16  # that are worth being found one by one
BLOCK = 64  # numbers whose maximum is found at once


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row of x R,V, the largest first, and their places: R,k each, as `Tensor.topk` has them.

    Where a row has fewer than k numbers above −inf, the rest are −inf, at places that mean nothing.
    """
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64) or not wanted():
        return tuple(x.topk(k, -1))  # type: ignore[return-value]
    if k == 1 or (k <= MOST and x.numel() <= FITTING):
        return one_by_one(x, k)
    if x.shape[1] // BLOCK > 4 * k:
        return by_blocks(x, k)
    return tuple(x.topk(k, -1))  # type: ignore[return-value]


def one_by_one(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The largest of all, then the largest of the others …; NumPy finds one many times as fast as PyTorch.

    What was found is −inf in x meanwhile, and afterwards what it was: a copy would cost as much as to find one.
    """
    rows, left = np.arange(len(x)), x.numpy()
    places, values = np.empty((len(x), k), np.int64), np.empty((len(x), k), left.dtype)
    for rank in range(k):
        places[:, rank] = found = left.argmax(1)
        values[:, rank] = left[rows, found]
        if rank + 1 < k:
            left[rows, found] = -np.inf
    for rank in reversed(range(k - 1)):  # a place of −inf may have been found again
        left[rows, places[:, rank]] = values[:, rank]
    return torch.from_numpy(values), torch.from_numpy(places)


def by_blocks(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """First in which blocks they are: whatever is among the k largest is in one of the k with the largest maxima."""
    rows, size = x.shape
    blocks = size // BLOCK
    whole = x[:, : blocks * BLOCK].view(rows, blocks, BLOCK)
    likely = whole.amax(-1).topk(k, -1).indices[..., None]  # R,k,1
    values = whole.gather(1, likely.expand(-1, -1, BLOCK)).flatten(1)
    places = (likely * BLOCK + torch.arange(BLOCK)).flatten(1)
    if blocks * BLOCK < size:
        values = torch.cat((values, x[:, blocks * BLOCK :]), 1)
        places = torch.cat((places, torch.arange(blocks * BLOCK, size).expand(rows, -1)), 1)
    largest, chosen = values.topk(k, -1)
    return largest, places.gather(1, chosen)
