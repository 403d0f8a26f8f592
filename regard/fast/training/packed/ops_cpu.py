"""Operations of a packed Transformer for CPUs, with fewer passes over memory than the reference.

ReLU is in place, forward and backward; dropout draws 16 bits a number, four numbers at a time; logits exist for some
rows only. Attention is the reference's.
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


CPU_OPS = ops.TORCH_OPS._replace(
    linear=linear, feed_forward=feed_forward, add_norm=add_norm, cross_entropy=cross_entropy_in_chunks
)
