"""Matrix products in fp16 on ARM CPUs, with C kernels for the operations between them.

The kernels are `native/fp16/`. Sums of 256 products are fp16, the sums of these are fp32. Elementwise operations stay
in fp32; windowed attention is left to PyTorch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from ctypes import CDLL
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from regard.console import log_message
from regard.fast.gemm import EXACT, Products, dense, is_dense
from regard.fast.kernels import build as compiled
from regard.fast.kernels.build import PLACE, SINGLE, WHOLE, YES, MissingError, approved
from regard.fast.selftest import ratio
from regard.fast.training.step_ops import EVERYWHERE, Squashing, Window, dropped

TRIAL, ROUNDS = (256, 512, 512), 4  # the shape of products by which the two are compared, and how many turns
CLOSE = 0.01  # of the whole; what halves may be off by
ASKED = ContextVar("asked", default=False)


@contextmanager
def halved() -> Iterator[None]:
    """In here, and in the ways back of what is computed here, products are counted in half precision if they can be."""
    token = ASKED.set(True)
    try:
        yield
    finally:
        ASKED.reset(token)


def multiplying(x: Tensor) -> Products:
    """Who multiplies with x."""
    wanted = ASKED.get() and x.device.type == "cpu" and x.dtype == torch.float32
    return (halves() or EXACT) if wanted else EXACT


@cache
def halves() -> Halved | None:
    """Products in half precision; where there are none, or none that are faster, that is said once."""
    try:
        kernels = load_kernels()
        found = Halved(kernels)
        approved(kernels, lambda: tried(found))
    except MissingError as error:
        log_message(f"products on this CPU stay in fp32: {error}")
        return None
    return found


def tried(found: Products) -> str:
    """Nothing, if products are right, and take less time than in single precision; otherwise what is wrong."""
    M, K, N = TRIAL
    with torch.random.fork_rng(devices=[]):
        a, b = torch.randn(M, K, dtype=torch.float32), torch.randn(K, N, dtype=torch.float32)
    exact = a @ b
    if not (found.mm(a, b) - exact).norm() < CLOSE * exact.norm():
        return "kernels for half precision give wrong numbers here"
    times = ratio(lambda: found.mm(a, b), lambda: EXACT.mm(a, b), ROUNDS)
    return f"in half precision they would take {times:.2f} times as long" if times > 1 else ""


TALL, WIDE = 8, 24  # rows of the left matrix, and columns of the right one, in a panel
LIKELY_ROWS = 64  # that a matrix is likely to be multiplied with


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
        return EXACT.often(b) if LIKELY_ROWS * b.numel() < self.few else self.panels(b)

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


class Between(Squashing):
    """See `regard.fast.gates.Steps`."""

    def __init__(self, kernels: CDLL) -> None:
        self.kernels = kernels

    def entropy(self, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """The loss of logits N,V and ids N,1, summed up; in the place of the logits it leaves their gradients."""
        (rows, words), targets = logits.shape, targets.to(torch.int64).contiguous()
        if rows and not 0 <= int(targets.min()) <= int(targets.max()) < words:
            raise IndexError(f"targets from {int(targets.min())} to {int(targets.max())}, but there are {words} words")
        losses = logits.new_empty(rows)
        self.kernels.between_entropy(*at(logits), rows, words, targets.data_ptr(), smoothing, losses.data_ptr())
        return losses.sum()

    def lstm(
        self, pre: Tensor, c: Tensor, after: Tensor, h: Tensor, above: Tensor, kept: Tensor | None, scale: float
    ) -> None:
        """See `Steps`; after this `pre` are gates."""
        self.kernels.between_lstm(*at(pre), *at(c), *at(after), *at(h), *c.shape)
        if above is not h:
            above.copy_(dropped(h, kept, scale))

    def lstm_back(
        self,
        pre: Tensor,
        c: Tensor,
        after: Tensor,
        d_above: Tensor,
        kept: Tensor | None,
        scale: float,
        d_h: Tensor,
        d_c: Tensor,
        d_pre: Tensor,
    ) -> None:
        """See `Steps`; `pre` are gates."""
        came = dense(dropped(d_above, kept, scale))
        self.kernels.between_lstm_back(
            *at(pre), *at(c), *at(after), *at(came), *at(d_h), *at(d_c), *at(d_pre), *c.shape
        )  # fmt: skip

    def gather(self, weights: Tensor, x: Tensor) -> Tensor:
        """See `Steps`."""
        weights, (B, T, S), V = weights.contiguous(), weights.shape, x.shape[2]
        x = x if x.stride(0) == T * x.stride(1) else x.contiguous()
        y = x.new_empty(B, S, V)
        self.kernels.between_gather(weights.data_ptr(), *at(x.flatten(0, 1)), y.data_ptr(), B, T, S, V)
        return y

    def squash(self, z: Tensor, out: Tensor, fed: Tensor, kept: Tensor | None, scale: float) -> None:
        """See `Steps`."""
        self.kernels.between_squash(*at(z), *at(out), *z.shape)
        fed.copy_(dropped(out, kept, scale))

    def squash_back(
        self, d_out: Tensor, out: Tensor, d_fed: Tensor, kept: Tensor | None, scale: float, d_z: Tensor
    ) -> None:
        """See `Steps`."""
        fed = dense(dropped(d_fed, kept, scale))
        self.kernels.between_squash_back(*at(d_out), *at(fed), *at(out), *at(d_z), *out.shape)

    def look(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        weights: Tensor,
        context: Tensor,
        centre: Tensor | None = None,
        window: Window = EVERYWHERE,
    ) -> None:
        """See `Steps`."""
        if centre is not None:
            super().look(query, keys, values, mask, weights, context, centre, window)
            return
        keys, values, mask = keys.contiguous(), values.contiguous(), mask.contiguous()
        self.kernels.between_look(
            *at(query), keys.data_ptr(), values.data_ptr(), mask.data_ptr(), *at(weights), *at(context),
            *keys.shape, values.shape[2],
        )  # fmt: skip

    def look_back(
        self,
        d_context: Tensor,
        d_weights: Tensor,
        weights: Tensor,
        keys: Tensor,
        values: Tensor,
        d_query: Tensor,
        d_scores: Tensor,
        d_all: Tensor,
        centre: Tensor | None = None,
        window: Window = EVERYWHERE,
        d_centre: Tensor | None = None,
    ) -> None:
        """See `Steps`."""
        if centre is not None:
            super().look_back(
                d_context, d_weights, weights, keys, values, d_query, d_scores, d_all, centre, window, d_centre
            )
            return
        keys, values = keys.contiguous(), values.contiguous()
        self.kernels.between_look_back(
            *at(d_context), *at(d_weights), *at(weights), keys.data_ptr(), values.data_ptr(), *at(d_query),
            *at(d_scores), *at(d_all), *keys.shape, values.shape[2],
        )  # fmt: skip


def at(x: Tensor) -> tuple[int, int]:
    """Where a matrix is, and how far its rows are apart; kernels check nothing."""
    if not x.is_cpu or x.dtype is not torch.float32 or not is_dense(x):
        raise ValueError(f"kernels take rows of single precision, not {x.dtype} on {x.device} with steps {x.stride()}")
    return x.data_ptr(), x.stride(0)


MATRIX = [PLACE, WHOLE]  # a matrix, and how far its rows are apart
SIGNATURES: compiled.Signatures = {
    "halves_pack": (SINGLE, [*MATRIX, YES, WHOLE, WHOLE, PLACE]),
    "halves_multiply": (None, [*MATRIX, YES, SINGLE, PLACE, SINGLE, WHOLE, WHOLE, WHOLE, *MATRIX, YES, PLACE, PLACE]),
    "between_entropy": (None, [*MATRIX, WHOLE, WHOLE, PLACE, SINGLE, PLACE]),
    "between_lstm": (None, [*MATRIX * 4, WHOLE, WHOLE]),
    "between_lstm_back": (None, [*MATRIX * 7, WHOLE, WHOLE]),
    "between_squash": (None, [*MATRIX * 2, WHOLE, WHOLE]),
    "between_squash_back": (None, [*MATRIX * 4, WHOLE, WHOLE]),
    "between_gather": (None, [PLACE, *MATRIX, PLACE, *[WHOLE] * 4]),
    "between_look": (None, [*MATRIX, PLACE, PLACE, PLACE, *MATRIX * 2, *[WHOLE] * 4]),
    "between_look_back": (None, [*MATRIX * 3, PLACE, PLACE, *MATRIX * 3, *[WHOLE] * 4]),
}


def load_kernels() -> ctypes.CDLL:
    """All of them, or a `MissingError`."""
    return compiled.library(compiled.SOURCES / "fp16", SIGNATURES, threaded=True)
