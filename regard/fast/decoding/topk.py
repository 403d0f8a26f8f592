"""Top-k on a CPU by repeated argmax in NumPy.

`Tensor.topk` on a CPU compares one number at a time; a maximum uses SIMD instructions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from regard.fast.eligibility import fast_paths_enabled

MAX_ARGMAX_K = 8  # largest k for repeated argmax, which takes as long as `Tensor.topk` for about twelve


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row of x (R, V), in descending order, and their indices.

    If a row has fewer than k numbers above −inf, the rest are −inf with meaningless indices.
    """
    has_numpy_dtype = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    if has_numpy_dtype and k <= MAX_ARGMAX_K and fast_paths_enabled():
        return topk_by_argmax(x, k)
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
