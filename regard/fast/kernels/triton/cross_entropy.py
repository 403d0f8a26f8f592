"""Fused linear cross-entropy and R-Drop on GPUs with Triton: logits exist for a chunk of rows only.

One program computes one row of logits. All sums are fp32, without atomics.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.fast.cuda_graphs.buckets import power
from regard.special_tokens import PAD


@triton.jit
def log_sum(z, V, C: tl.constexpr):
    """log Σ_v exp z(v), and Σ_v z(v), of one row."""
    column = tl.arange(0, C)
    most = tl.full((C,), -float("inf"), tl.float32)
    mass = tl.zeros((C,), tl.float32)
    total = tl.zeros((C,), tl.float32)
    for first in range(0, V, C):
        inside = first + column < V
        part = tl.load(z + first + column, inside, -float("inf")).to(tl.float32)
        higher = tl.maximum(most, part)
        mass = tl.where(higher > -float("inf"), mass * tl.exp(most - higher) + tl.exp(part - higher), 0.0)
        most = higher
        total += tl.where(inside, part, 0.0)
    top = tl.max(most, 0)
    mass = tl.where(most > -float("inf"), mass * tl.exp(most - top), 0.0)
    return top + tl.log(tl.sum(mass, 0)), tl.sum(total, 0)


@triton.jit
def smoothed(z, target, V, smoothing, C: tl.constexpr):
    """The smoothed cross-entropy of one row, and log Σ exp z."""
    norm, total = log_sum(z, V, C)
    chosen = tl.load(z + target).to(tl.float32)
    return norm - (1 - smoothing) * chosen - smoothing / V * total, norm


@triton.jit
def cross_entropy_kernel(logits, targets, found, V, smoothing, PAD: tl.constexpr, C: tl.constexpr):
    """The loss of a row; the logits become their gradients."""
    row = tl.program_id(0).to(tl.int64)
    z, target = logits + row * V, tl.load(targets + row)
    counts = target != PAD
    loss, norm = smoothed(z, target, V, smoothing, C)
    tl.store(found + row, tl.where(counts, loss, 0.0))
    tl.debug_barrier()  # the target's logit is read that is written to below
    for first in range(0, V, C):
        column = first + tl.arange(0, C)
        inside = column < V
        p = tl.exp(tl.load(z + column, inside, 0.0).to(tl.float32) - norm)
        p = p - smoothing / V - tl.where(column == target, 1 - smoothing, 0.0)
        tl.store(z + column, tl.where(counts, p, 0.0), inside)


@triton.jit
def r_drop_kernel(logits, targets, found, half, V, smoothing, alpha, PAD: tl.constexpr, C: tl.constexpr):
    """The same of two passes over one word, half each, with α/4 of their divergences from each other."""
    row = tl.program_id(0).to(tl.int64)
    y, z, target = logits + row * V, logits + (row + half) * V, tl.load(targets + row)
    counts = target != PAD
    loss_p, norm_p = smoothed(y, target, V, smoothing, C)
    loss_q, norm_q = smoothed(z, target, V, smoothing, C)
    from_p, from_q = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
    for first in range(0, V, C):
        column = first + tl.arange(0, C)
        inside = column < V
        log_p = tl.load(y + column, inside, 0.0).to(tl.float32) - norm_p
        log_q = tl.load(z + column, inside, 0.0).to(tl.float32) - norm_q
        from_p += tl.where(inside, tl.exp(log_p) * (log_p - log_q), 0.0)
        from_q += tl.where(inside, tl.exp(log_q) * (log_q - log_p), 0.0)
    kl_p, kl_q = tl.sum(from_p, 0), tl.sum(from_q, 0)
    tl.store(found + row, tl.where(counts, (loss_p + loss_q) / 2 + alpha / 4 * (kl_p + kl_q), 0.0))
    for first in range(0, V, C):
        column = first + tl.arange(0, C)
        inside = column < V
        log_p = tl.load(y + column, inside, 0.0).to(tl.float32) - norm_p
        log_q = tl.load(z + column, inside, 0.0).to(tl.float32) - norm_q
        p, q = tl.exp(log_p), tl.exp(log_q)
        truth = smoothing / V + tl.where(column == target, 1 - smoothing, 0.0)
        to_y = (p - truth) / 2 + alpha / 4 * (p * (log_p - log_q - kl_p) + p - q)
        to_z = (q - truth) / 2 + alpha / 4 * (q * (log_q - log_p - kl_q) + q - p)
        tl.store(y + column, tl.where(counts, to_y, 0.0), inside)
        tl.store(z + column, tl.where(counts, to_z, 0.0), inside)


LOGITS = 2**28  # numbers, of which there are never more at a time


def losses(
    h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, r_drop: float = 0.0
) -> Tensor:
    """Σ −log p(y), smoothed, of h N,D and ids N, of which PAD counts for nothing; R-Drop's of two halves of h."""
    return Losses.apply(h, weight, bias, targets, smoothing, r_drop, torch.is_grad_enabled())  # type: ignore[no-untyped-call,no-any-return]


class Losses(Function):
    """Cross-entropy and R-Drop with no more than `LOGITS` logits at a time: their gradients are taken at once."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        r_drop: float,
        learns: bool,
    ) -> Tensor:
        """A scalar."""
        W, passes = weight.to(h.dtype), 2 if r_drop else 1
        b = None if bias is None else bias.to(h.dtype)
        half, V = len(h) // passes, len(W)
        losses = h.new_empty(half, dtype=torch.float32)
        dh = torch.empty_like(h)
        dW = torch.zeros_like(W, dtype=torch.float32) if learns else W
        db = None if b is None else torch.zeros_like(b, dtype=torch.float32)
        C = min(4096, power(V))
        halves, to_halves, kinds = h.view(passes, half, -1), dh.view(passes, half, -1), targets[:half]
        chunk = max(1, LOGITS // (V * passes))
        for first in range(0, half, chunk):
            rows = halves[:, first : first + chunk].flatten(0, 1)
            logits = rows @ W.t() if b is None else torch.addmm(b, rows, W.t())
            count = len(rows) // passes
            here = kinds[first : first + chunk], losses[first : first + chunk]
            if r_drop:
                r_drop_kernel[(count,)](logits, *here, count, V, smoothing, r_drop, PAD, C, num_warps=8)
            else:
                cross_entropy_kernel[(count,)](logits, *here, V, smoothing, PAD, C, num_warps=8)
            if learns:
                to_halves[:, first : first + chunk] = (logits @ W).view(passes, count, -1)
                dW += product(logits, rows)
                if db is not None:
                    db += logits.sum(0, dtype=torch.float32)
        ctx.save_for_backward(dh, dW, db)
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        """What is there already, as much as is asked for."""
        dh, dW, db = ctx.saved_tensors
        return (dh.float() * by).to(dh.dtype), dW * by, None if db is None else db * by, None, None, None, None


def product(a: Tensor, b: Tensor) -> Tensor:
    """aᵀ b in fp32, the gradient of a weight."""
    if a.dtype == torch.float32 or not a.is_cuda:
        return (a.t() @ b).float()
    return torch.mm(a.t(), b, out_dtype=torch.float32)
