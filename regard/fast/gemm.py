"""Matrix products without autograd: the interface of GEMM backends, and PyTorch's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from regard.fast.kernels.fp16 import FusedElementwise

NO_BATCHED_BLAS = not torch._C.has_mkl  # then PyTorch computes a batch of products one by one
NUMPY_DTYPES = (torch.float32, torch.float64)
MAX_SINGLE_THREADED = 2**18  # multiplications up to which NumPy's BLAS uses one thread


class Gemm(Protocol):
    """Backend for products of matrices (M, K) and (K, N); the second may be the result of `prepack`."""

    @property
    def elementwise(self) -> FusedElementwise | None:
        """Kernels for the operations between two products, or None."""
        ...

    def prepack(self, b: Tensor) -> Any:
        """Return a matrix (K, N) in the layout that is fastest for many products with a few rows each."""
        ...

    def mm(self, a: Tensor, b: Any, out: Tensor | None = None, max_abs: float = 0.0) -> Tensor:
        """Return the product; `max_abs` is an upper bound of |a|, or 0 if unknown."""
        ...

    def add_mm(self, c: Tensor, a: Tensor, b: Any, max_abs: float = 0.0) -> Tensor:
        """Add the product to c (M, N) in place."""
        ...

    def linear(self, a: Tensor, b: Any, bias: Tensor) -> Tensor:
        """Return the product plus a bias (N,)."""
        ...

    def linear_grads(self, dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of weight (N, K) and bias (N,), given dy (M, N) and the input x (M, K)."""
        ...


class TorchGemm:
    """Products by PyTorch, in the dtype of the inputs."""

    elementwise = None

    def prepack(self, b: Tensor) -> Tensor:
        """Make the matrix contiguous on a CPU: OpenBLAS is four times as slow for a transposed one."""
        return b.contiguous() if b.device.type == "cpu" else b

    def mm(self, a: Tensor, b: Tensor, out: Tensor | None = None, max_abs: float = 0.0) -> Tensor:
        """Return the product."""
        return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)

    def add_mm(self, c: Tensor, a: Tensor, b: Tensor, max_abs: float = 0.0) -> Tensor:
        """Add the product to c (M, N) in place."""
        return c.addmm_(a, b)

    def linear(self, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        """Return the product plus a bias (N,)."""
        return torch.addmm(bias, a, b)

    def linear_grads(self, dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of weight (N, K) and bias (N,)."""
        return dy.t() @ x, dy.sum(0)


TORCH_GEMM = TorchGemm()


def to_contiguous_rows(x: Tensor) -> Tensor:
    """Return x, copied if its last dimension is not contiguous."""
    return x if has_contiguous_rows(x) else x.clone(memory_format=torch.contiguous_format)


def has_contiguous_rows(x: Tensor) -> bool:
    """Return whether the last dimension is contiguous; it is for empty tensors and rows of one number."""
    return x.stride(-1) == 1 or x.shape[-1] == 1 or not x.numel()


def batched_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the products (B, M, N) of (B, M, K) and (B, K, N), without autograd.

    Without MKL, PyTorch calls BLAS for each matrix, with an overhead that is larger than a small product. The loop of
    NumPy has less: it is three times as fast for vectors.
    """
    is_small = (
        a.shape[1] * a.shape[2] * b.shape[2] <= MAX_SINGLE_THREADED and a.dtype == b.dtype and a.dtype in NUMPY_DTYPES
    )
    if not (NO_BATCHED_BLAS and is_small and a.device.type == "cpu"):
        return torch.bmm(a, b)
    with np.errstate(all="ignore"):  # PyTorch does not warn of NaN either
        return torch.from_numpy(np.matmul(a.detach().numpy(), b.detach().numpy()))
