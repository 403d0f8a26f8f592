"""Matrix products on a CPU that PyTorch, without MKL, hands to its library in a way that is slow."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

ONE_BY_ONE = not torch._C.has_mkl  # how PyTorch goes through a batch of products
KINDS = (torch.float32, torch.float64)


def turned(W: Tensor) -> Tensor:
    """Wᵀ, to be multiplied with over and over by a few rows at a time; on a CPU it is laid out as such.

    OpenBLAS takes four times as long for a transposed matrix where the rows lie apart.
    """
    return W.t() if W.is_cuda else W.t().contiguous()


def products(a: Tensor, b: Tensor) -> Tensor:
    """The products B,M,N of B,M,K and B,K,N, without a way back.

    PyTorch calls its library once for each, and the calling takes longer than a small product. So does NumPy, but all
    of its calls come from one loop: three times as fast for vectors.
    """
    if a.is_cuda or not ONE_BY_ONE or a.dtype not in KINDS:
        return torch.bmm(a, b)
    return torch.from_numpy(np.matmul(a.detach().numpy(), b.detach().numpy()))
