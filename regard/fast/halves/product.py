"""Matrix products in half precision: sums of 128 products are halves, and what is added up of these is single."""

from __future__ import annotations

import math
from ctypes import CDLL
from typing import NamedTuple

import torch
from torch import Tensor

from regard.fast.halves.between import Between, dense

TALL, WIDE = 8, 24  # rows of the left matrix, and columns of the right one, in a panel
FARTHEST = 62  # exponent of a scale; that of two of them is still a number in single precision


class Panels(NamedTuple):
    """A matrix as the kernels read it: the rows of a left one, or the columns of a right one."""

    halves: Tensor
    vectors: int
    steps: int  # K
    scale: float  # what its numbers were multiplied by


class Halved:
    """See `regard.fast.products.Products`."""

    def __init__(self, kernels: CDLL) -> None:
        self.kernels = kernels
        self.between = Between(kernels)

    def often(self, b: Tensor) -> Panels:
        """A matrix K,N that several are multiplied by."""
        return self.panels(b.t(), left=False)

    def mm(self, a: Tensor, b: Tensor | Panels, out: Tensor | None = None) -> Tensor:
        """A M,K times b K,N."""
        return self.product(a, b, out, add=False)

    def add(self, c: Tensor, a: Tensor, b: Tensor | Panels) -> Tensor:
        """The same, added to c M,N in its place."""
        return self.product(a, b, c, add=True)

    def affine(self, a: Tensor, b: Tensor | Panels, bias: Tensor) -> Tensor:
        """The same, added to N numbers."""
        return self.add(bias.repeat(len(a), 1), a, b)

    def slopes(self, dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The sums of what comes to an affine map are made while its halves are."""
        turned = dense(dy).t()
        if turned.stride(1) == 1:  # a single number of each row
            return self.mm(turned, x), dy.sum(0)
        sums = torch.zeros(len(turned))
        return self.multiplied(self.panels(turned, left=True, sums=sums), self.often(x), None, add=False), sums

    def product(self, a: Tensor, b: Tensor | Panels, out: Tensor | None, add: bool) -> Tensor:
        """Of matrices."""
        right = self.often(b) if isinstance(b, Tensor) else b
        return self.multiplied(self.panels(a, left=True), right, out, add)

    def multiplied(self, left: Panels, right: Panels, out: Tensor | None, add: bool) -> Tensor:
        """Of panels."""
        m, n, k = left.vectors, right.vectors, left.steps
        if right.steps != k:
            raise ValueError(f"a product of {m} × {k} and {right.steps} × {n}")
        if out is None:
            out = torch.empty(m, n)
        assert out.shape == (m, n)
        assert out.dtype == torch.float32
        assert out.stride(1) == 1 or n == 1
        if not k:
            return out if add else out.zero_()
        self.kernels.halves_multiply(
            left.halves.data_ptr(), right.halves.data_ptr(), m, n, k, out.data_ptr(), out.stride(0),
            1 / (left.scale * right.scale), add,
        )  # fmt: skip
        return out

    def panels(self, x: Tensor, left: bool, sums: Tensor | None = None) -> Panels:
        """The rows of x N,K; to `sums` go those of their numbers, if what lies side by side is of different rows."""
        assert (x.device.type, x.dtype) == ("cpu", torch.float32), (x.device, x.dtype)
        (count, k), whole = x.shape, x.stride(1) == 1
        if not whole and x.stride(0) != 1:
            x, whole = x.contiguous(), True
        apart, wide = x.stride(0) if whole else x.stride(1), TALL if left else WIDE
        rows = (count, k) if whole else (k, count)
        scale = fitting(self.kernels.halves_largest(x.data_ptr(), *rows, apart))
        halves = torch.empty(-(-count // wide) * wide * k, dtype=torch.float16)
        self.kernels.halves_pack(
            x.data_ptr(),
            apart,
            whole,
            count,
            k,
            left,
            scale,
            halves.data_ptr(),
            None if sums is None else sums.data_ptr(),
        )
        return Panels(halves, count, k, scale)


def fitting(largest: float) -> float:
    """A power of two that brings the largest number of a matrix to between 8 and 16."""
    if not 0 < largest < math.inf:
        return 1.0
    return 2.0 ** min(max(4 - math.frexp(largest)[1], -FARTHEST), FARTHEST)
