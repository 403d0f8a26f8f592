"""Operations of a packed Transformer for GPUs with Triton, with few passes over memory.

Matrix products are PyTorch's, summed in fp32; everything between two of them is one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.console import log_message
from regard.fast.cuda_graphs.buckets import next_power_of_two
from regard.fast.gemm import Gemm
from regard.fast.kernels.triton import packed_transformer as kernels
from regard.fast.kernels.triton.cross_entropy import linear_cross_entropy, weight_gradient
from regard.fast.selftest import find_error, runs_without_error
from regard.fast.training.packed import ops
from regard.fast.training.packed.batch import Ragged, make_ragged
from regard.fast.training.packed.ops import FeedForwardFunction, LinearFunction, PackedOps
from regard.special_tokens import PAD

MAX_PROGRAMS = 1024  # programs that share sums over rows: a few per multiprocessor
MAX_HEAD_SIZE = 128  # head size that a program holds
MAX_KERNEL_LENGTH = {torch.float32: 64}  # longest sentence that a program holds; 128 in half precision


def column_sums(x: Tensor, activations: Tensor | None = None) -> Tensor:
    """Return sums over rows of x (N, D) in fp32; with `activations`, x is first set to 0 where they are ≤ 0."""
    rows, D = x.shape
    R, C = 32, 128
    programs = max(1, min(MAX_PROGRAMS * C // D, math.ceil(rows / R)))
    partial_sums = x.new_empty(programs, D, dtype=torch.float32)
    kernels.column_sums[(programs, math.ceil(D / C))](
        x, activations, partial_sums, rows, D, R, C, activations is not None
    )
    return partial_sums.sum(0)


class TritonGemm(Gemm):
    """Products of PyTorch; gradients of weights and biases are fp32."""

    def linear_relu(self, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        """See `Gemm`; one kernel of cuBLAS."""
        return torch._addmm_activation(bias, a, b)

    def weight_grad(self, dy: Tensor, x: Tensor) -> Tensor:
        """See `Gemm`."""
        return weight_gradient(dy, x)

    def linear_grads(self, dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `Gemm`."""
        return weight_gradient(dy, x), column_sums(dy)

    def linear_relu_grads(self, dh: Tensor, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `Gemm`; the backward pass of ReLU and the gradient of the bias are one kernel."""
        bias_grad = column_sums(dh, h)
        return weight_gradient(dh, x), bias_grad


TRITON_GEMM = TritonGemm()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x Wᵀ + b, or x Wᵀ."""
    return LinearFunction.apply(x, weight, bias, TRITON_GEMM)  # type: ignore[no-untyped-call,no-any-return]


def feed_forward(x: Tensor, W_1: Tensor, b_1: Tensor, W_2: Tensor) -> Tensor:
    """Compute max(0, x W_1 + b_1) W_2."""
    return FeedForwardFunction.apply(x, W_1, b_1, W_2, TRITON_GEMM)  # type: ignore[no-untyped-call,no-any-return]


class AddNormFunction(Function):
    """s = x + dropout(y + b), LayerNorm(s)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        bias: Tensor,
        weight: Tensor,
        shift: Tensor,
        epsilon: float,
        p: float,
        post: bool,
    ) -> tuple[Tensor, Tensor]:
        """Save no dropout mask: the same seed gives the same mask."""
        rows, D = x.shape
        s, n = torch.empty_like(x), torch.empty_like(y)
        normed_wide = torch.empty_like(x) if post else None
        mean, scale = x.new_empty(2, rows, dtype=torch.float32).unbind()
        C = next_power_of_two(D)
        R = max(1, 2048 // C)
        ctx.p = p
        # Drawn on the device, so that each replay of a graph has a new seed.
        ctx.seed = torch.randint(2**31 - 1, (2,), device=x.device) if p else None
        kernels.add_norm_fwd[(math.ceil(rows / R),)](
            x, y, bias, weight, shift, s, n, normed_wide, mean, scale, rows, D, epsilon, p, ctx.seed, R, C, p > 0, post
        )
        ctx.save_for_backward(s, weight, mean, scale)
        ctx.dtype, ctx.is_post_norm = y.dtype, post
        ctx.set_materialize_grads(False)
        return s if normed_wide is None else normed_wide, n

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, ds: Tensor | None, dn: Tensor | None) -> tuple[Tensor | None, ...]:
        """Sum the gradients of the three vectors over programs."""
        s, weight, mean, scale = ctx.saved_tensors
        assert dn is not None  # the norm is always used
        rows, D = s.shape
        dx, dy = torch.empty_like(s), s.new_empty(rows, D, dtype=ctx.dtype)
        C = next_power_of_two(D)
        R = max(1, 2048 // C)
        programs = max(1, min(MAX_PROGRAMS, math.ceil(rows / R)))
        partial_grads = s.new_empty(3, programs, D, dtype=torch.float32)
        kernels.add_norm_bwd[(programs,)](
            None if ds is None else ds.contiguous(), dn.contiguous(), s, weight, mean, scale, dx, dy,
            *partial_grads.unbind(), rows, D, ctx.p, ctx.seed, R, C, ctx.p > 0, ds is not None, ctx.is_post_norm,
        )  # fmt: skip
        dbias, dweight, dshift = partial_grads.sum(1).unbind()
        return dx, dy, dbias, dweight, dshift, None, None, None


class VarlenAttentionFunction(Function):
    """softmax(Q Kᵀ / √d_k) V of each head of each sentence.

    `own` (N, 3·size) has queries, keys and values of the sentences; or (N, size) their queries, over a `source` (M,
    2·size) of keys and values.
    """

    @staticmethod
    def forward(
        ctx: Any, own: Tensor, source: Tensor | None, queries: Ragged, keys: Ragged, heads: int, causal: bool
    ) -> Tensor:
        """Return contexts (N, size)."""
        q, k, v = _split_qkv(own, source)
        out = own.new_empty(len(own), q.shape[1])
        ctx.save_for_backward(own, source)
        ctx.attention_arguments = queries, keys, heads, causal
        strides = (q.stride(0), k.stride(0), out.stride(0))
        _launch_attention(kernels.attention_varlen_fwd, (q, k, v, out), strides, queries, keys, heads, causal)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """Return each gradient in the layout of its tensor."""
        own, source = ctx.saved_tensors
        to_own = torch.empty_like(own)
        to_source = None if source is None else own.new_empty(source.shape)
        tensors = (*_split_qkv(own, source), dout.contiguous(), *_split_qkv(to_own, to_source))
        strides = (tensors[0].stride(0), tensors[1].stride(0), dout.shape[1], tensors[5].stride(0))
        _launch_attention(kernels.attention_varlen_bwd, tensors, strides, *ctx.attention_arguments)
        return to_own, to_source, None, None, None, None


def _split_qkv(own: Tensor, source: Tensor | None) -> tuple[Tensor, ...]:
    return own.chunk(3, 1) if source is None else (own, *source.chunk(2, 1))


def _launch_attention(
    kernel: Any,
    tensors: tuple[Tensor, ...],
    strides: tuple[int, ...],
    queries: Ragged,
    keys: Ragged,
    heads: int,
    causal: bool,
) -> None:
    """Run one program for each head of each sentence."""
    q = tensors[0]
    size = q.shape[1] // heads
    T, S = next_power_of_two(queries.max_length), next_power_of_two(keys.max_length)
    warps = {16: 1, 32: 1, 64: 4, 128: 8}[max(T, S)]
    exact = "ieee" if q.dtype == torch.float32 else "tf32"
    kernel[(len(queries.cu_seqlens) - 1, heads)](
        *tensors, queries.cu_seqlens, keys.cu_seqlens, *strides, size, size**-0.5,
        T, S, next_power_of_two(size), causal, exact, num_warps=warps,
    )  # fmt: skip


add_norm: Callable[..., tuple[Tensor, Tensor]] = AddNormFunction.apply


class AttentionCase(NamedTuple):
    """Properties that decide whether an implementation of attention runs."""

    is_causal: bool
    is_self: bool
    has_grad: bool
    head_size: int
    lengths: tuple[int, int]  # of queries and keys, rounded up to powers of two
    dtype: torch.dtype
    device: torch.device


def cross_attention(q: Tensor, kv: Tensor, queries: Ragged, keys: Ragged, heads: int) -> Tensor:
    """Attend over the source."""
    return _attend(q, kv, queries, keys, heads, False)


def self_attention(qkv: Tensor, words: Ragged, heads: int, causal: bool) -> Tensor:
    """Attend within sentences."""
    return _attend(qkv, None, words, words, heads, causal)


def _attend(own: Tensor, source: Tensor | None, queries: Ragged, keys: Ragged, heads: int, causal: bool) -> Tensor:
    """Attend by the own kernel for short sentences, PyTorch's varlen attention for long ones, else padded.

    A GPU may lack the shared memory for a tile of the kernel, so each one is tried before it is used.
    """
    q, *_ = _split_qkv(own, source)
    size = q.shape[1] // heads
    lengths = next_power_of_two(queries.max_length), next_power_of_two(keys.max_length)
    case = AttentionCase(causal, source is None, own.requires_grad, size, lengths, own.dtype, own.device)
    fits = max(lengths) <= MAX_KERNEL_LENGTH.get(q.dtype, 128) and size <= MAX_HEAD_SIZE
    if fits and _kernel_runs(case):
        return VarlenAttentionFunction.apply(own, source, queries, keys, heads, causal)  # type: ignore[no-untyped-call,no-any-return]
    if q.dtype in (torch.bfloat16, torch.float16) and _flash_attention_runs(case._replace(lengths=(16, 16))):
        return _flash_attention(own, source, queries, keys, heads, causal)
    if source is None:
        return ops.self_attention(own, queries, heads, causal)
    return ops.cross_attention(own, source, queries, keys, heads)


def _flash_attention(
    own: Tensor, source: Tensor | None, queries: Ragged, keys: Ragged, heads: int, causal: bool
) -> Tensor:
    """Attend by PyTorch's varlen attention, which needs PyTorch 2.11 and an Ampere GPU."""
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (x.reshape(len(x), heads, -1) for x in _split_qkv(own, source))
    lengths = queries.cu_seqlens, keys.cu_seqlens, queries.max_length, keys.max_length
    out = varlen_attn(q, k, v, *lengths, window_size=(-1, 0 if causal else -1))
    assert isinstance(out, Tensor)  # not with `return_aux`
    return out.flatten(1)


@cache
def _kernel_runs(case: AttentionCase) -> bool:
    return runs_without_error(
        f"attention over {max(case.lengths)} tokens", lambda: _try_attention(VarlenAttentionFunction.apply, case)
    )


@cache
def _flash_attention_runs(case: AttentionCase) -> bool:
    error = find_error(lambda: _try_attention(_flash_attention, case))
    if error is not None:
        _log_padded_attention(error)
    return error is None


@cache
def _log_padded_attention(error: str) -> None:
    """Log once why long sentences are padded, for all cases."""
    log_message(f"attention over long sentences is padded: no varlen attention: {error}")


def _try_attention(attend: Callable[..., Tensor], case: AttentionCase) -> None:
    """Attend within a sentence, and compute its gradients if training needs them."""
    with torch.inference_mode(False), torch.set_grad_enabled(case.has_grad):
        queries, keys = (make_ragged(torch.tensor([n], device=case.device), n, n) for n in case.lengths)
        own, source = (
            torch.zeros(n, parts * case.head_size, dtype=case.dtype, device=case.device, requires_grad=case.has_grad)
            for n, parts in zip(case.lengths, (3, 2) if case.is_self else (1, 2), strict=True)
        )
        out = attend(own, None if case.is_self else source, queries, keys, 1, case.is_causal)
        if case.has_grad:
            out.backward(torch.zeros_like(out))  # type: ignore[no-untyped-call]


def count_tokens(lengths: Tensor, target_in: Tensor, target_out: Tensor) -> Tensor:
    """Count in one kernel instead of a dozen, because the host waits for it."""
    counts = lengths.new_empty(3, dtype=torch.long)
    targets = [side if side.stride(1) == 1 else side.contiguous() for side in (target_in, target_out)]
    rows, T = target_in.shape
    row_strides = [side.stride(0) for side in targets]
    kernels.count_tokens[(1,)](lengths.contiguous(), *targets, counts, rows, T, *row_strides, PAD, 64, 32)
    return counts


TRITON_OPS = PackedOps(
    linear, feed_forward, cross_attention, self_attention, add_norm, linear_cross_entropy, count_tokens
)
