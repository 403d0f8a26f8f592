"""Matrix products on a CPU that PyTorch, without MKL, hands to its library in a way that is slow."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

ONE_BY_ONE = not torch._C.has_mkl  # how PyTorch goes through a batch of products
KINDS = (torch.float32, torch.float64)
SMALL = 2**18  # multiplications in a product, up to which NumPy's library starts no threads of its own


def turned(W: Tensor) -> Tensor:
    """Wᵀ, to be multiplied with over and over by a few rows at a time; on a CPU it is laid out as such.

    OpenBLAS takes four times as long for a transposed matrix where the rows lie apart.
    """
    return W.t().contiguous() if W.device.type == "cpu" else W.t()


def products(a: Tensor, b: Tensor) -> Tensor:
    """The products B,M,N of B,M,K and B,K,N, without a way back.

    PyTorch calls its library once for each, and the calling takes longer than a small product. So does NumPy, but all
    of its calls come from one loop: three times as fast for vectors.
    """
    small = a.shape[1] * a.shape[2] * b.shape[2] <= SMALL and a.dtype == b.dtype and a.dtype in KINDS
    if not (ONE_BY_ONE and small and a.device.type == "cpu"):
        return torch.bmm(a, b)
    with np.errstate(all="ignore"):  # PyTorch does not warn of what is no number either
        return torch.from_numpy(np.matmul(a.detach().numpy(), b.detach().numpy()))
