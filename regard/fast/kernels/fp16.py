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
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from regard.console import log_message
from regard.fast.gemm import TORCH_GEMM, Gemm, has_contiguous_rows, to_contiguous_rows
from regard.fast.kernels import build
from regard.fast.kernels.build import KernelUnavailableError, require_selftest
from regard.fast.selftest import check_products
from regard.fast.training.step_ops import AttentionGrads, AttentionStep, LSTMStep, StepOps, apply_dropout

SELFTEST_SHAPE = 256, 512, 512  # of the compared products
TOLERANCE = 0.01  # relative error
FP16_REQUESTED = ContextVar("fp16_requested", default=False)


@contextmanager
def use_fp16_gemm() -> Iterator[None]:
    """Use fp16 products, where there are kernels, in the enclosed code and its backward passes."""
    token = FP16_REQUESTED.set(True)
    try:
        yield
    finally:
        FP16_REQUESTED.reset(token)


def select_gemm(x: Tensor) -> Gemm:
    """Return the GEMM backend for products with x."""
    is_requested = FP16_REQUESTED.get() and x.device.type == "cpu" and x.dtype == torch.float32
    return (load_fp16_gemm() or TORCH_GEMM) if is_requested else TORCH_GEMM


@cache
def load_fp16_gemm() -> Fp16Gemm | None:
    """Return fp16 products, or None if there are no kernels or they are not faster; the reason is logged once."""
    try:
        kernels = load_kernels()
        gemm = Fp16Gemm(kernels)
        require_selftest(kernels, lambda: check_fp16_gemm(gemm))
    except KernelUnavailableError as error:
        log_message(f"fp16 kernels: not used on this CPU, products stay in fp32: {error}")
        return None
    return gemm


def check_fp16_gemm(gemm: Gemm) -> str:
    """Return "" if products are right and faster than in fp32, otherwise what is wrong."""
    M, K, N = SELFTEST_SHAPE
    with torch.random.fork_rng(devices=[]):
        a, b = torch.randn(M, K, dtype=torch.float32), torch.randn(K, N, dtype=torch.float32)
    return check_products("fp16", lambda: gemm.mm(a, b), lambda: TORCH_GEMM.mm(a, b), TOLERANCE)


PANEL_ROWS, PANEL_COLUMNS = 8, 24  # of the left and right matrix
LIKELY_ROWS = 64  # rows that a prepacked matrix is likely to be multiplied with


class PackedPanels(NamedTuple):
    """Columns of a right matrix in the layout of the kernels."""

    data: Tensor
    columns: int  # N
    rows: int  # K
    scale: float  # factor that was applied before rounding


class MatrixView(NamedTuple):
    """A matrix with contiguous rows or contiguous columns, and the stride between them."""

    x: Tensor
    stride: int
    row_major: bool


class Fp16Gemm(Gemm):
    """See `regard.fast.gemm.Gemm`."""

    def __init__(self, kernels: CDLL, min_operations: int = 2**20) -> None:
        """Products with fewer multiplications than `min_operations` are left to PyTorch."""
        self.kernels = kernels
        self.elementwise: FusedElementwise = FusedElementwise(kernels)
        self.min_operations = min_operations

    def prepack(self, b: Tensor) -> Tensor | PackedPanels:
        """Return a matrix (K, N) as panels if products of some dozens of rows with it are large enough."""
        return TORCH_GEMM.prepack(b) if LIKELY_ROWS * b.numel() < self.min_operations else self.pack_panels(b)

    def pack_panels(self, b: Tensor) -> PackedPanels:
        """Convert a matrix (K, N) to panels."""
        (k, n), (x, stride, row_major) = b.shape, view_matrix(b.t())
        panels = _allocate_panels(n, k, PANEL_COLUMNS)
        scale = self.kernels.fp16_pack(x.data_ptr(), stride, row_major, n, k, panels.data_ptr())
        return PackedPanels(panels, n, k, scale)

    def mm(self, a: Tensor, b: Tensor | PackedPanels, out: Tensor | None = None, max_abs: float = 0.0) -> Tensor:
        """Return a (M, K) times b (K, N)."""
        return self._multiply(a, b, out, add=False, max_abs=max_abs)

    def add_mm(self, c: Tensor, a: Tensor, b: Tensor | PackedPanels, max_abs: float = 0.0) -> Tensor:
        """Add the product to c (M, N) in place."""
        return self._multiply(a, b, c, add=True, max_abs=max_abs)

    def linear(self, a: Tensor, b: Tensor | PackedPanels, bias: Tensor) -> Tensor:
        """Return the product plus a bias (N,)."""
        return self.add_mm(bias.repeat(len(a), 1), a, b)

    def linear_grads(self, dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of weight and bias; the sums for the bias are made while dy is converted."""
        if view_matrix(dy.t()).row_major:
            return self.mm(dy.t(), x), dy.sum(0)
        sums = dy.new_zeros(dy.shape[1])
        return self._multiply(dy.t(), x, None, add=False, sums=sums), sums

    def _multiply(
        self,
        a: Tensor,
        b: Tensor | PackedPanels,
        out: Tensor | None,
        add: bool,
        sums: Tensor | None = None,
        max_abs: float = 0.0,
    ) -> Tensor:
        """Multiply a (M, K); `sums` (M,) receives the sums of its rows if its columns are contiguous."""
        if isinstance(b, Tensor) and len(a) * b.numel() < self.min_operations:
            if sums is not None:
                sums.copy_(a.sum(1))
            return TORCH_GEMM.add_mm(out, a, b) if add and out is not None else TORCH_GEMM.mm(a, b, out)
        right = self.pack_panels(b) if isinstance(b, Tensor) else b
        (m, k), n = a.shape, right.columns
        out = a.new_empty(m, n) if out is None else out
        if right.rows != k or out.shape != (m, n):
            raise ValueError(f"a product of {m} × {k} and {right.rows} × {n} is not {' × '.join(map(str, out.shape))}")
        (x, stride, row_major), panels = view_matrix(a), _allocate_panels(m, k, PANEL_ROWS)
        self.kernels.fp16_gemm(
            x.data_ptr(), stride, row_major, max_abs, right.data.data_ptr(), right.scale, m, n, k, *as_matrix(out), add,
            panels.data_ptr(), None if sums is None else sums.data_ptr(),
        )  # fmt: skip
        return out


def view_matrix(x: Tensor) -> MatrixView:
    """Return a matrix as kernels can read it, copied if neither rows nor columns are contiguous."""
    if x.stride(1) == 1:  # the common case first: there are hundreds in an update
        return MatrixView(x, as_matrix(x)[1], True)
    if x.stride(0) == 1 and not has_contiguous_rows(x):
        as_matrix(x.t())
        return MatrixView(x, x.stride(1), False)
    x = to_contiguous_rows(x)
    return MatrixView(x, as_matrix(x)[1], True)


def _allocate_panels(count: int, rows: int, panel_width: int) -> Tensor:
    return torch.empty(-(-count // panel_width) * panel_width * rows, dtype=torch.float16)


class FusedElementwise(StepOps):
    """Step operations as C kernels; see `regard.fast.training.step_ops.StepOps`."""

    def __init__(self, kernels: CDLL) -> None:
        self.kernels = kernels

    def _call(self, name: str, *arguments: Tensor | int) -> None:
        """Call a kernel, which takes address and row stride of a matrix."""
        parts = (as_matrix(part) if isinstance(part, Tensor) else (part,) for part in arguments)
        getattr(self.kernels, name)(*chain.from_iterable(parts))

    def cross_entropy(self, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """Return the summed loss of logits (N, V) and ids (N, 1), and replace the logits by their gradients."""
        (rows, words), targets = logits.shape, targets.to(torch.int64).contiguous()
        if rows and not 0 <= int(targets.min()) <= int(targets.max()) < words:
            raise IndexError(f"targets from {int(targets.min())} to {int(targets.max())}, but there are {words} words")
        losses = logits.new_empty(rows)
        self.kernels.elementwise_cross_entropy(
            *as_matrix(logits), rows, words, targets.data_ptr(), smoothing, losses.data_ptr()
        )
        return losses.sum()

    def lstm_gates(self, step: LSTMStep, h: Tensor, above: Tensor) -> None:
        """See `StepOps`; afterwards `pre` holds the activated gates."""
        pre, c, after, keep_mask, scale = step
        self._call("elementwise_lstm", pre, c, after, h, *c.shape)
        if above is not h:
            above.copy_(apply_dropout(h, keep_mask, scale))

    def lstm_gates_backward(self, step: LSTMStep, d_above: Tensor, d_h: Tensor, d_c: Tensor, d_pre: Tensor) -> None:
        """See `StepOps`; `pre` holds the activated gates."""
        pre, c, after, keep_mask, scale = step
        grad = to_contiguous_rows(apply_dropout(d_above, keep_mask, scale))
        self._call("elementwise_lstm_backward", pre, c, after, grad, d_h, d_c, d_pre, *c.shape)

    def attention_weighted_sum(self, weights: Tensor, x: Tensor) -> Tensor:
        """See `StepOps`."""
        weights, (B, T, S), V = weights.contiguous(), weights.shape, x.shape[2]
        x = x if x.stride(0) == T * x.stride(1) else x.contiguous()
        y = x.new_empty(B, S, V)
        self._call("elementwise_weighted_sum", weights.data_ptr(), x.flatten(0, 1), y.data_ptr(), B, T, S, V)
        return y

    def attentional_tanh(self, z: Tensor, out: Tensor, fed: Tensor, keep_mask: Tensor | None, scale: float) -> None:
        """See `StepOps`."""
        self._call("elementwise_tanh", z, out, *z.shape)
        fed.copy_(apply_dropout(out, keep_mask, scale))

    def attentional_tanh_backward(
        self, d_out: Tensor, out: Tensor, d_fed: Tensor, keep_mask: Tensor | None, scale: float, d_z: Tensor
    ) -> None:
        """See `StepOps`."""
        fed = to_contiguous_rows(apply_dropout(d_fed, keep_mask, scale))
        self._call("elementwise_tanh_backward", d_out, fed, out, d_z, *out.shape)

    def attention(self, step: AttentionStep, query: Tensor, context: Tensor) -> None:
        """See `StepOps`."""
        keys, values, mask, weights, center, _ = step
        if center is not None:
            super().attention(step, query, context)
            return
        keys, values, mask = keys.contiguous(), values.contiguous(), mask.contiguous()
        memory = keys.data_ptr(), values.data_ptr(), mask.data_ptr()
        self._call("elementwise_attention", query, *memory, weights, context, *keys.shape, values.shape[2])

    def attention_backward(self, step: AttentionStep, grads: AttentionGrads) -> None:
        """See `StepOps`."""
        keys, values, _, weights, center, _ = step
        d_context, d_weights, d_query, d_scores, d_all, _ = grads
        if center is not None:
            super().attention_backward(step, grads)
            return
        keys, values = keys.contiguous(), values.contiguous()
        inputs, sizes = (weights, keys.data_ptr(), values.data_ptr()), (*keys.shape, values.shape[2])
        self._call("elementwise_attention_backward", d_context, d_weights, *inputs, d_query, d_scores, d_all, *sizes)


def as_matrix(x: Tensor) -> tuple[int, int]:
    """Return address and row stride of a matrix; the kernels themselves check nothing."""
    if not x.is_cpu or x.dtype is not torch.float32 or not has_contiguous_rows(x):
        raise ValueError(f"kernels take contiguous fp32 rows, not {x.dtype} on {x.device} with strides {x.stride()}")
    return x.data_ptr(), x.stride(0)


def load_kernels() -> ctypes.CDLL:
    """Load the C kernels, or raise a `KernelUnavailableError`."""
    return build.load_library(build.SOURCES / "fp16", threaded=True)
