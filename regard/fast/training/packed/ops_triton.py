"""Operations of a packed Transformer for GPUs with Triton, with few passes over memory.

Matrix products are PyTorch's, summed in fp32; everything between two of them is one kernel.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.fast.cuda_graphs.buckets import power
from regard.fast.kernels.triton import packed_transformer as kernels
from regard.fast.kernels.triton.cross_entropy import losses, product
from regard.fast.training.packed import ops as plain
from regard.fast.training.packed.batch import Spans
from regard.fast.training.packed.ops import Parts
from regard.special_tokens import PAD

PROGRAMS = 1024  # that share the sums over rows: some for each of a large card's processors
WIDEST = 128  # numbers of a head that one program holds at once


def longest(kind: torch.dtype) -> int:
    """Words of a sentence that one program holds at once."""
    return 64 if kind == torch.float32 else 128


def seed(dropout: float, like: Tensor) -> Tensor | None:
    """Of a dropout, drawn on the device, so that a recorded graph draws a new one each time."""
    return torch.randint(2**31 - 1, (2,), device=like.device) if dropout else None


def sums(x: Tensor, kept: Tensor | None = None) -> Tensor:
    """Σ over rows of N,D, in fp32; with `kept`, x is first set to 0, in place, where that is not above 0."""
    rows, D = x.shape
    R, C = 32, 128
    programs = max(1, min(PROGRAMS * C // D, math.ceil(rows / R)))
    found = x.new_empty(programs, D, dtype=torch.float32)
    kernels.column_sums[(programs, math.ceil(D / C))](x, kept, found, rows, D, R, C, kept is not None)
    return found.sum(0)


class Linear(Function):
    """X Wᵀ + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """In x's precision, whatever the weights are kept in."""
        W = weight.to(x.dtype)
        ctx.save_for_backward(x, W)
        ctx.biased = bias is not None
        return x @ W.t() if bias is None else torch.addmm(bias.to(x.dtype), x, W.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of weights are fp32."""
        x, W = ctx.saved_tensors
        dy = dy.contiguous()
        return dy @ W, product(dy, x), sums(dy) if ctx.biased else None


class FeedForward(Function):
    """max(0, x W_1 + b_1) W_2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, W_1: Tensor, b_1: Tensor, W_2: Tensor) -> Tensor:
        """The hidden layer is kept after its bend, which says what went through."""
        V_1, V_2 = W_1.to(x.dtype), W_2.to(x.dtype)
        h = torch._addmm_activation(b_1.to(x.dtype), x, V_1.t())
        ctx.save_for_backward(x, h, V_1, V_2)
        return h @ V_2.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
        """Through the bend and into b_1 in one pass."""
        x, h, V_1, V_2 = ctx.saved_tensors
        dy = dy.contiguous()
        dh = dy @ V_2
        db_1 = sums(dh, h)
        return dh @ V_1, product(dh, x), db_1, product(dy, h)


class AddNorm(Function):
    """S = x + dropout(y + b), LayerNorm(s)."""

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
        """What was dropped is not kept: the same seed drops the same."""
        rows, D = x.shape
        s, n = torch.empty_like(x), torch.empty_like(y)
        wide = torch.empty_like(x) if post else None
        mean, scale = x.new_empty(2, rows, dtype=torch.float32).unbind()
        C = power(D)
        R = max(1, 2048 // C)
        ctx.p, ctx.seed = p, seed(p, x)
        kernels.add_norm_forward[(math.ceil(rows / R),)](
            x, y, bias, weight, shift, s, n, wide, mean, scale, rows, D, epsilon, p, ctx.seed, R, C, p > 0, post
        )
        ctx.save_for_backward(s, weight, mean, scale)
        ctx.kind, ctx.post = y.dtype, post
        ctx.set_materialize_grads(False)
        return s if wide is None else wide, n

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, ds: Tensor | None, dn: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients of the three vectors are added up over programs."""
        s, weight, mean, scale = ctx.saved_tensors
        assert dn is not None  # every norm is read
        rows, D = s.shape
        dx, dy = torch.empty_like(s), s.new_empty(rows, D, dtype=ctx.kind)
        C = power(D)
        R = max(1, 2048 // C)
        programs = max(1, min(PROGRAMS, math.ceil(rows / R)))
        shares = s.new_empty(3, programs, D, dtype=torch.float32)
        kernels.add_norm_backward[(programs,)](
            None if ds is None else ds.contiguous(), dn.contiguous(), s, weight, mean, scale, dx, dy, *shares.unbind(),
            rows, D, ctx.p, ctx.seed, R, C, ctx.p > 0, ds is not None, ctx.post,
        )  # fmt: skip
        dbias, dweight, dshift = shares.sum(1).unbind()
        return dx, dy, dbias, dweight, dshift, None, None, None


class Attention(Function):
    """softmax(Q Kᵀ / √d_k) V of each head of each sentence, all three out of tensors that hold other things, too.

    `own` N,3·size are queries, keys and values of the sentences themselves; or N,size their queries, over a `source`
    M,2·size of keys and values.
    """

    @staticmethod
    def forward(
        ctx: Any, own: Tensor, source: Tensor | None, queries: Spans, keys: Spans, heads: int, causal: bool
    ) -> Tensor:
        """N,size."""
        q, k, v = apart(own, source)
        out = own.new_empty(len(own), q.shape[1])
        ctx.save_for_backward(own, source)
        ctx.rest = queries, keys, heads, causal
        strides = (q.stride(0), k.stride(0), out.stride(0))
        launch(kernels.attend_forward, (q, k, v, out), strides, queries, keys, heads, causal)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """Each gradient is laid out as what it belongs to."""
        own, source = ctx.saved_tensors
        to_own = torch.empty_like(own)
        to_source = None if source is None else own.new_empty(source.shape)
        tensors = (*apart(own, source), dout.contiguous(), *apart(to_own, to_source))
        strides = (tensors[0].stride(0), tensors[1].stride(0), dout.shape[1], tensors[5].stride(0))
        launch(kernels.attend_backward, tensors, strides, *ctx.rest)
        return to_own, to_source, None, None, None, None


def apart(own: Tensor, source: Tensor | None) -> tuple[Tensor, ...]:
    """Queries, keys, values."""
    return own.chunk(3, 1) if source is None else (own, *source.chunk(2, 1))


def launch(
    kernel: Any,
    tensors: tuple[Tensor, ...],
    strides: tuple[int, ...],
    queries: Spans,
    keys: Spans,
    heads: int,
    causal: bool,
) -> None:
    """One program for each head of each sentence."""
    q = tensors[0]
    size = q.shape[1] // heads
    T, S = power(queries.longest), power(keys.longest)
    warps = {16: 1, 32: 1, 64: 4, 128: 8}[max(T, S)]
    exact = "ieee" if q.dtype == torch.float32 else "tf32"
    kernel[(len(queries.starts) - 1, heads)](
        *tensors, queries.starts, keys.starts, *strides, size, size**-0.5,
        T, S, power(size), causal, exact, num_warps=warps,
    )  # fmt: skip


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X Wᵀ + b."""
    return Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call,no-any-return]


def feed_forward(x: Tensor, W_1: Tensor, b_1: Tensor, W_2: Tensor) -> Tensor:
    """max(0, x W_1 + b_1) W_2."""
    return FeedForward.apply(x, W_1, b_1, W_2)  # type: ignore[no-untyped-call,no-any-return]


def attend(q: Tensor, kv: Tensor, queries: Spans, keys: Spans, heads: int) -> Tensor:
    """Over the source; the kernel takes sentences and heads that a program can hold."""
    if max(queries.longest, keys.longest) > longest(q.dtype) or q.shape[1] > heads * WIDEST:
        return plain.attend(q, kv, queries, keys, heads)
    return Attention.apply(q, kv, queries, keys, heads, False)  # type: ignore[no-untyped-call,no-any-return]


def attend_self(qkv: Tensor, words: Spans, heads: int, causal: bool) -> Tensor:
    """Over the sentence's own words."""
    if words.longest > longest(qkv.dtype) or qkv.shape[1] > 3 * heads * WIDEST:
        return plain.attend_self(qkv, words, heads, causal)
    return Attention.apply(qkv, None, words, words, heads, causal)  # type: ignore[no-untyped-call,no-any-return]


def add_norm(
    x: Tensor, y: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, epsilon: float, dropout: float, post: bool
) -> tuple[Tensor, Tensor]:
    """The stream behind a sub-layer, and what the next one reads."""
    return AddNorm.apply(x, y, bias, weight, shift, epsilon, dropout, post)  # type: ignore[no-untyped-call,no-any-return]


def counts(lengths: Tensor, target_in: Tensor, target_out: Tensor) -> Tensor:
    """One kernel in the place of a dozen: the host waits for it before it can begin."""
    found = lengths.new_empty(3, dtype=torch.long)
    sides = [side if side.stride(1) == 1 else side.contiguous() for side in (target_in, target_out)]
    rows, T = target_in.shape
    apart = [side.stride(0) for side in sides]
    kernels.counts[(1,)](lengths.contiguous(), *sides, found, rows, T, *apart, PAD, 64, 32)
    return found


FUSED = Parts(linear, feed_forward, attend, attend_self, add_norm, losses, counts)
