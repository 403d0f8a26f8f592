"""Matrix products without autograd: PyTorch's, the interface of all GEMM backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from regard.fast.kernels.fp16 import FusedElementwise

NO_BATCHED_BLAS = not torch._C.has_mkl  # then PyTorch computes a batch of products one by one
NUMPY_DTYPES = (torch.float32, torch.float64)
threshold_backward = torch.ops.aten.threshold_backward.grad_input
MAX_SINGLE_THREADED = 2**18  # multiplications up to which NumPy's BLAS uses one thread


class Gemm:
    """Products of matrices (M, K) and (K, N) by PyTorch, in the dtype of the inputs; other backends inherit from it.

    The second matrix may be the result of `prepack`.
    """

    elementwise: FusedElementwise | None = None  # kernels for the operations between two products

    def prepack(self, b: Tensor) -> Any:
        """Return a matrix (K, N) in the layout that is fastest for many products with a few rows each.

        On a CPU it is contiguous: OpenBLAS is four times as slow for a transposed one.
        """
        return b.contiguous() if b.device.type == "cpu" else b

    def mm(self, a: Tensor, b: Any, out: Tensor | None = None, max_abs: float = 0.0) -> Tensor:
        """Return the product; `max_abs` is an upper bound of |a|, or 0 if unknown."""
        return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)

    def add_mm(self, c: Tensor, a: Tensor, b: Any, max_abs: float = 0.0) -> Tensor:
        """Add the product to c (M, N) in place."""
        return c.addmm_(a, b)

    def linear(self, a: Tensor, b: Any, bias: Tensor) -> Tensor:
        """Return the product plus a bias (N,)."""
        return torch.addmm(bias, a, b)

    def linear_relu(self, a: Tensor, b: Any, bias: Tensor) -> Tensor:
        """Return max(0, a b + bias)."""
        return self.linear(a, b, bias).relu_()

    def weight_grad(self, dy: Tensor, x: Tensor) -> Tensor:
        """Return the gradient of a weight (N, K), given dy (M, N) and the input x (M, K)."""
        return self.mm(dy.t(), x)

    def linear_grads(self, dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of weight (N, K) and bias (N,), given dy (M, N) and the input x (M, K)."""
        return dy.t() @ x, dy.sum(0)

    def linear_relu_grads(self, dh: Tensor, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Set dh (M, N) to 0 where the output h of ReLU is 0, and return the gradients of weight and bias."""
        return self.linear_grads(threshold_backward(dh, h, 0, grad_input=dh), x)


TORCH_GEMM = Gemm()


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
