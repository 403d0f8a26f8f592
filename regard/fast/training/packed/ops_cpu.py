"""Operations of a packed Transformer for CPUs, with fewer passes over memory than the reference.

ReLU is in place, forward and backward; sentences are padded for attention once, not for queries, keys and values each;
dropout draws 16 bits a number, four numbers at a time; logits exist for some rows only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard.fast.gemm import EXACT, Products
from regard.fast.kernels.fp16 import multiplying
from regard.fast.training.linear_cross_entropy import losses
from regard.fast.training.packed import ops as plain
from regard.fast.training.packed.batch import Spans
from regard.fast.training.packed.ops import Parts

KINDS = 2**16  # what 16 bits can be
threshold_back = torch.ops.aten.threshold_backward.grad_input


class Linear(Function):
    """X Wᵀ + b, or X Wᵀ, by products that have no way back of their own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor, b: Tensor | None, by: Products) -> Tensor:
        """X N,I; weight O,I -> N,O."""
        ctx.by, ctx.biased = by, b is not None
        ctx.save_for_backward(x, W)
        return by.mm(x, W.t()) if b is None else by.affine(x, W.t(), b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Of x, W and b."""
        (x, W), by = ctx.saved_tensors, ctx.by
        dW, db = by.slopes(dy, x) if ctx.biased else (by.mm(dy.t(), x), None)
        return by.mm(dy, W), dW, db, None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X Wᵀ + b, or X Wᵀ."""
    by = multiplying(x)
    return plain.linear(x, weight, bias) if by is EXACT else Linear.apply(x, weight, bias, by)  # type: ignore[no-untyped-call]


class FeedForward(Function):
    """max(0, x W_1 + b_1) W_2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, W_1: Tensor, b_1: Tensor, W_2: Tensor, by: Products) -> Tensor:
        """The hidden layer is kept after its bend, which says what went through."""
        h = by.affine(x, W_1.t(), b_1).relu_()
        ctx.by = by
        ctx.save_for_backward(x, h, W_1, W_2)
        return by.mm(h, W_2.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Through the bend in place."""
        (x, h, W_1, W_2), by = ctx.saved_tensors, ctx.by
        dh = by.mm(dy, W_2)
        threshold_back(dh, h, 0, grad_input=dh)
        return by.mm(dh, W_1), *by.slopes(dh, x), by.mm(dy.t(), h), None


def feed_forward(x: Tensor, W_1: Tensor, b_1: Tensor, W_2: Tensor) -> Tensor:
    """max(0, x W_1 + b_1) W_2."""
    return FeedForward.apply(x, W_1, b_1, W_2, multiplying(x))  # type: ignore[no-untyped-call,no-any-return]


def attend(q: Tensor, kv: Tensor, queries: Spans, keys: Spans, heads: int) -> Tensor:
    """Over the source."""
    (own,), (k, v) = split(q, queries, heads, 1), split(kv, keys, heads, 2)
    return looked(own, k, v, queries, keys, causal=False)


def attend_self(qkv: Tensor, words: Spans, heads: int, causal: bool) -> Tensor:
    """Over the sentence's own words; `causal`: those up to each."""
    q, k, v = split(qkv, words, heads, 3)
    return looked(q, k, v, words, words, causal)


def split(x: Tensor, words: Spans, heads: int, count: int) -> tuple[Tensor, ...]:
    """So many tensors side by side, N,count·size, as B,heads,T,d each."""
    rows, size = len(words.starts) - 1, x.shape[1] // count // heads
    padded = x if len(x) == rows * words.longest else words.pad(x)
    return padded.view(rows, words.longest, count, heads, size).permute(2, 0, 3, 1, 4).unbind()


def looked(q: Tensor, k: Tensor, v: Tensor, queries: Spans, keys: Spans, causal: bool) -> Tensor:
    """softmax(Q Kᵀ / √d_k) V, all heads of a word side by side again: N,size.

    PyTorch's own kernel gives each core some sentences and heads; `bmm` shares every small product out among the cores.
    """
    places = torch.arange(keys.longest)
    seen = (places < keys.starts.diff().clamp(min=1)[:, None])[:, None, None]  # B,1,1,S
    if causal:
        seen = seen & (places <= places[:, None])
    found = F.scaled_dot_product_attention(q, k, v, None if seen.all() else seen).transpose(1, 2)
    count = len(queries.rows)
    return (found if count == found.shape[0] * found.shape[1] else queries.pack(found)).reshape(count, -1)


def add_norm(
    x: Tensor, y: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, epsilon: float, dropout: float, post: bool
) -> tuple[Tensor, Tensor]:
    """The stream behind a sub-layer, and what the next one reads."""
    y = y + bias
    s = torch.addcmul(x, y, kept(y, dropout)) if dropout else x + y
    n = F.layer_norm(s, s.shape[1:], weight, shift, epsilon)
    return n if post else s, n


def kept(like: Tensor, dropout: float) -> Tensor:
    """What dropout multiplies with: 0 for its share of the numbers, and for the others what makes up for it."""
    least = round(dropout * KINDS)
    drawn = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    left = (drawn[: like.numel()] >= least - KINDS // 2).to(like.dtype)
    return left.mul_(KINDS / (KINDS - least) if least < KINDS else 0.0).view_as(like)


LEAN = Parts(linear, feed_forward, attend, attend_self, add_norm, losses, plain.counts)
