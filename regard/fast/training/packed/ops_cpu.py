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

from regard.fast.gemm import TORCH_GEMM, Gemm
from regard.fast.kernels.fp16 import select_gemm
from regard.fast.training.linear_cross_entropy import cross_entropy_in_chunks
from regard.fast.training.packed import ops
from regard.fast.training.packed.batch import Ragged
from regard.fast.training.packed.ops import PackedOps

NUM_DRAWS = 2**16  # values of 16 bits
threshold_backward = torch.ops.aten.threshold_backward.grad_input


class LinearFunction(Function):
    """x Wᵀ + b, or x Wᵀ, by a GEMM backend."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor, b: Tensor | None, gemm: Gemm) -> Tensor:
        """Multiply x (N, I) by weight (O, I) -> (N, O)."""
        ctx.gemm, ctx.has_bias = gemm, b is not None
        ctx.save_for_backward(x, W)
        return gemm.mm(x, W.t()) if b is None else gemm.linear(x, W.t(), b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, W and b."""
        (x, W), gemm = ctx.saved_tensors, ctx.gemm
        dW, db = gemm.linear_grads(dy, x) if ctx.has_bias else (gemm.mm(dy.t(), x), None)
        return gemm.mm(dy, W), dW, db, None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x Wᵀ + b, or x Wᵀ."""
    gemm = select_gemm(x)
    return ops.linear(x, weight, bias) if gemm is TORCH_GEMM else LinearFunction.apply(x, weight, bias, gemm)  # type: ignore[no-untyped-call]


class FeedForwardFunction(Function):
    """max(0, x W_1 + b_1) W_2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, W_1: Tensor, b_1: Tensor, W_2: Tensor, gemm: Gemm) -> Tensor:
        """Save the hidden layer after ReLU, which says what passed."""
        h = gemm.linear(x, W_1.t(), b_1).relu_()
        ctx.gemm = gemm
        ctx.save_for_backward(x, h, W_1, W_2)
        return gemm.mm(h, W_2.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Apply the backward pass of ReLU in place."""
        (x, h, W_1, W_2), gemm = ctx.saved_tensors, ctx.gemm
        dh = gemm.mm(dy, W_2)
        threshold_backward(dh, h, 0, grad_input=dh)
        return gemm.mm(dh, W_1), *gemm.linear_grads(dh, x), gemm.mm(dy.t(), h), None


def feed_forward(x: Tensor, W_1: Tensor, b_1: Tensor, W_2: Tensor) -> Tensor:
    """Compute max(0, x W_1 + b_1) W_2."""
    return FeedForwardFunction.apply(x, W_1, b_1, W_2, select_gemm(x))  # type: ignore[no-untyped-call,no-any-return]


def cross_attention(q: Tensor, kv: Tensor, queries: Ragged, keys: Ragged, heads: int) -> Tensor:
    """Attend over the source."""
    (queries_by_head,), (k, v) = _split_heads(q, queries, heads, 1), _split_heads(kv, keys, heads, 2)
    return _attend_padded(queries_by_head, k, v, queries, keys, causal=False)


def self_attention(qkv: Tensor, words: Ragged, heads: int, causal: bool) -> Tensor:
    """Attend within sentences; `causal`: to earlier tokens only."""
    q, k, v = _split_heads(qkv, words, heads, 3)
    return _attend_padded(q, k, v, words, words, causal)


def _split_heads(x: Tensor, words: Ragged, heads: int, count: int) -> tuple[Tensor, ...]:
    """Split N, count·size into `count` tensors (B, heads, T, d)."""
    rows, size = len(words.cu_seqlens) - 1, x.shape[1] // count // heads
    padded = x if len(x) == rows * words.max_length else words.pad(x)
    return padded.view(rows, words.max_length, count, heads, size).permute(2, 0, 3, 1, 4).unbind()


def _attend_padded(q: Tensor, k: Tensor, v: Tensor, queries: Ragged, keys: Ragged, causal: bool) -> Tensor:
    """softmax(Q Kᵀ / √d_k) V, all heads of a word side by side again: N,size.

    PyTorch's own kernel gives each core some sentences and heads; `bmm` shares every small product out among the cores.
    """
    positions = torch.arange(keys.max_length)
    mask = (positions < keys.cu_seqlens.diff().clamp(min=1)[:, None])[:, None, None]  # (B, 1, 1, S)
    if causal:
        mask = mask & (positions <= positions[:, None])
    context = F.scaled_dot_product_attention(q, k, v, None if mask.all() else mask).transpose(1, 2)
    count = len(queries.seq_ids)
    return (context if count == context.shape[0] * context.shape[1] else queries.pack(context)).reshape(count, -1)


def add_norm(
    x: Tensor, y: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, epsilon: float, dropout: float, post: bool
) -> tuple[Tensor, Tensor]:
    """Return the residual stream after a sub-layer, and the input of the next one."""
    y = y + bias
    s = torch.addcmul(x, y, dropout_mask(y, dropout)) if dropout else x + y
    n = F.layer_norm(s, s.shape[1:], weight, shift, epsilon)
    return n if post else s, n


def dropout_mask(like: Tensor, dropout: float) -> Tensor:
    """Return the factors of dropout: 0 with probability `dropout`, else 1 / (1 − dropout)."""
    threshold = round(dropout * NUM_DRAWS)
    draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    mask = (draws[: like.numel()] >= threshold - NUM_DRAWS // 2).to(like.dtype)
    return mask.mul_(NUM_DRAWS / (NUM_DRAWS - threshold) if threshold < NUM_DRAWS else 0.0).view_as(like)


CPU_OPS = PackedOps(
    linear, feed_forward, cross_attention, self_attention, add_norm, cross_entropy_in_chunks, ops.count_tokens
)
