"""Matrix products in half precision: sums of 256 products are halves, and what is added up of these is single."""

from __future__ import annotations

from ctypes import CDLL
from typing import NamedTuple

import torch
from torch import Tensor

from regard.fast.halves.between import Between, at
from regard.fast.products import EXACT, dense, is_dense

TALL, WIDE = 8, 24  # rows of the left matrix, and columns of the right one, in a panel
ROWS = 64  # that a matrix is likely to be multiplied with


class Panels(NamedTuple):
    """The columns of a right matrix as the kernels read them."""

    halves: Tensor
    columns: int  # N
    steps: int  # K
    scale: float  # what its numbers were multiplied by


class Lines(NamedTuple):
    """The rows of a matrix as they lie: each dense, or with those of one column side by side; and how far apart."""

    x: Tensor
    apart: int
    whole: bool


class Halved:
    """See `regard.fast.products.Products`."""

    def __init__(self, kernels: CDLL, few: int = 2**20) -> None:
        """Products of fewer multiplications, and matrices that could only be part of such, are left to PyTorch."""
        self.kernels = kernels
        self.between = Between(kernels)
        self.few = few

    def often(self, b: Tensor) -> Tensor | Panels:
        """A matrix K,N that several are multiplied by, by some dozens of rows at a time."""
        return EXACT.often(b) if ROWS * b.numel() < self.few else self.panels(b)

    def panels(self, b: Tensor) -> Panels:
        """A matrix K,N."""
        (k, n), (x, apart, whole) = b.shape, lines(b.t())
        halves = room(n, k, WIDE)
        return Panels(halves, n, k, self.kernels.halves_pack(x.data_ptr(), apart, whole, n, k, halves.data_ptr()))

    def mm(self, a: Tensor, b: Tensor | Panels, out: Tensor | None = None, most: float = 0.0) -> Tensor:
        """A M,K times b K,N."""
        return self.product(a, b, out, add=False, most=most)

    def add(self, c: Tensor, a: Tensor, b: Tensor | Panels, most: float = 0.0) -> Tensor:
        """The same, added to c M,N in its place."""
        return self.product(a, b, c, add=True, most=most)

    def affine(self, a: Tensor, b: Tensor | Panels, bias: Tensor) -> Tensor:
        """The same, added to N numbers."""
        return self.add(bias.repeat(len(a), 1), a, b)

    def slopes(self, dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The sums of what comes to an affine map are made while its halves are."""
        if lines(dy.t()).whole:
            return self.mm(dy.t(), x), dy.sum(0)
        sums = dy.new_zeros(dy.shape[1])
        return self.product(dy.t(), x, None, add=False, sums=sums), sums

    def product(
        self,
        a: Tensor,
        b: Tensor | Panels,
        out: Tensor | None,
        add: bool,
        sums: Tensor | None = None,
        most: float = 0.0,
    ) -> Tensor:
        """Of a M,K as it lies; to `sums` M go those of its rows, if its columns are dense."""
        if isinstance(b, Tensor) and len(a) * b.numel() < self.few:
            return self.exactly(a, b, out, add, sums)
        right = self.panels(b) if isinstance(b, Tensor) else b
        (m, k), n = a.shape, right.columns
        out = a.new_empty(m, n) if out is None else out
        if right.steps != k or out.shape != (m, n):
            raise ValueError(f"a product of {m} × {k} and {right.steps} × {n} is not {' × '.join(map(str, out.shape))}")
        (x, apart, whole), halves = lines(a), room(m, k, TALL)
        self.kernels.halves_multiply(
            x.data_ptr(), apart, whole, most, right.halves.data_ptr(), right.scale, m, n, k, *at(out), add,
            halves.data_ptr(), None if sums is None else sums.data_ptr(),
        )  # fmt: skip
        return out

    def exactly(self, a: Tensor, b: Tensor, out: Tensor | None, add: bool, sums: Tensor | None) -> Tensor:
        """The same by PyTorch."""
        if sums is not None:
            sums.copy_(a.sum(1))
        return EXACT.add(out, a, b) if add and out is not None else EXACT.mm(a, b, out)


def lines(x: Tensor) -> Lines:
    """A matrix as kernels can read it; one that lies otherwise is copied."""
    if x.stride(1) == 1:  # as nearly all do, and there are hundreds in an update
        return Lines(x, at(x)[1], True)
    if x.stride(0) == 1 and not is_dense(x):
        at(x.t())
        return Lines(x, x.stride(1), False)
    x = dense(x)
    return Lines(x, at(x)[1], True)


def room(vectors: int, steps: int, wide: int) -> Tensor:
    """Memory for the panels of so many vectors."""
    return torch.empty(-(-vectors // wide) * wide * steps, dtype=torch.float16)
