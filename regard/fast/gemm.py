"""Matrix products without autograd: the interface of GEMM backends, and PyTorch's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from regard.fast.kernels.fp16 import Between

ONE_BY_ONE = not torch._C.has_mkl  # how PyTorch goes through a batch of products
KINDS = (torch.float32, torch.float64)
SMALL = 2**18  # multiplications in a product, up to which NumPy's library starts no threads of its own


class Products(Protocol):
    """Who makes products of matrices M,K and K,N; the second may be what `often` made of it."""

    @property
    def between(self) -> Between | None:
        """Kernels for what lies between two products, where there are any as well."""
        ...

    def often(self, b: Tensor) -> Any:
        """A matrix K,N that is multiplied with over and over, by a few rows at a time, as it is read fastest."""
        ...

    def mm(self, a: Tensor, b: Any, out: Tensor | None = None, most: float = 0.0) -> Tensor:
        """The product; no number of a is larger than `most`, if that is known."""
        ...

    def add(self, c: Tensor, a: Tensor, b: Any, most: float = 0.0) -> Tensor:
        """The same, added to c M,N in its place."""
        ...

    def affine(self, a: Tensor, b: Any, bias: Tensor) -> Tensor:
        """The same, added to N numbers."""
        ...

    def slopes(self, dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of an affine map of x M,K, to which dy M,N came: its weight's N,K, and its bias's N."""
        ...


class Exact:
    """PyTorch's, in the precision of what comes in."""

    between = None

    def often(self, b: Tensor) -> Tensor:
        """OpenBLAS takes four times as long for a transposed matrix where the rows lie apart."""
        return b.contiguous() if b.device.type == "cpu" else b

    def mm(self, a: Tensor, b: Tensor, out: Tensor | None = None, most: float = 0.0) -> Tensor:
        """The product."""
        return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)

    def add(self, c: Tensor, a: Tensor, b: Tensor, most: float = 0.0) -> Tensor:
        """The same, added to c M,N in its place."""
        return c.addmm_(a, b)

    def affine(self, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        """The same, added to N numbers."""
        return torch.addmm(bias, a, b)

    def slopes(self, dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of an affine map of x M,K, to which dy M,N came: its weight's N,K, and its bias's N."""
        return dy.t() @ x, dy.sum(0)


EXACT = Exact()


def dense(x: Tensor) -> Tensor:
    """The same with its last dimension dense, as kernels read it."""
    return x if is_dense(x) else x.clone(memory_format=torch.contiguous_format)


def is_dense(x: Tensor) -> bool:
    """Whether what is in a row lies side by side; of nothing, and of single numbers, anything does."""
    return x.stride(-1) == 1 or x.shape[-1] == 1 or not x.numel()


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
