"""Fused linear cross-entropy and R-Drop on GPUs with Triton: logits exist for a chunk of rows only.

One program computes one row of logits. All sums are fp32, without atomics.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.fast.cuda_graphs.buckets import next_power_of_two
from regard.fast.training.linear_cross_entropy import LossAndGradients, LossFunction
from regard.special_tokens import PAD


@triton.jit
def logsumexp(z, V, C: tl.constexpr):
    """Return log Σ_v exp z(v) and Σ_v z(v) of one row."""
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
def label_smoothing_loss(z, target, V, smoothing, C: tl.constexpr):
    """Return the label-smoothed cross-entropy of one row, and log Σ exp z."""
    norm, total = logsumexp(z, V, C)
    chosen = tl.load(z + target).to(tl.float32)
    return norm - (1 - smoothing) * chosen - smoothing / V * total, norm


@triton.jit
def cross_entropy_kernel(logits, targets, result, V, smoothing, PAD: tl.constexpr, C: tl.constexpr):
    """Compute the loss of a row, and replace the logits by their gradients."""
    row = tl.program_id(0).to(tl.int64)
    z, target = logits + row * V, tl.load(targets + row)
    counts = target != PAD
    loss, norm = label_smoothing_loss(z, target, V, smoothing, C)
    tl.store(result + row, tl.where(counts, loss, 0.0))
    tl.debug_barrier()  # the target's logit is read before it is overwritten
    for first in range(0, V, C):
        column = first + tl.arange(0, C)
        inside = column < V
        p = tl.exp(tl.load(z + column, inside, 0.0).to(tl.float32) - norm)
        p = p - smoothing / V - tl.where(column == target, 1 - smoothing, 0.0)
        tl.store(z + column, tl.where(counts, p, 0.0), inside)


@triton.jit
def r_drop_kernel(logits, targets, result, half, V, smoothing, alpha, PAD: tl.constexpr, C: tl.constexpr):
    """Compute the mean loss of two passes over one token, plus α/4 of their symmetric KL divergence; see above."""
    row = tl.program_id(0).to(tl.int64)
    y, z, target = logits + row * V, logits + (row + half) * V, tl.load(targets + row)
    counts = target != PAD
    loss_p, norm_p = label_smoothing_loss(y, target, V, smoothing, C)
    loss_q, norm_q = label_smoothing_loss(z, target, V, smoothing, C)
    from_p, from_q = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
    for first in range(0, V, C):
        column = first + tl.arange(0, C)
        inside = column < V
        log_p = tl.load(y + column, inside, 0.0).to(tl.float32) - norm_p
        log_q = tl.load(z + column, inside, 0.0).to(tl.float32) - norm_q
        from_p += tl.where(inside, tl.exp(log_p) * (log_p - log_q), 0.0)
        from_q += tl.where(inside, tl.exp(log_q) * (log_q - log_p), 0.0)
    kl_p, kl_q = tl.sum(from_p, 0), tl.sum(from_q, 0)
    tl.store(result + row, tl.where(counts, (loss_p + loss_q) / 2 + alpha / 4 * (kl_p + kl_q), 0.0))
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


MAX_LOGITS = 2**28  # upper bound of the logits in memory


def linear_cross_entropy(
    h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, r_drop: float = 0.0
) -> Tensor:
    """Return the summed, label-smoothed cross-entropy of h (N, D) and ids (N,), ignoring PAD, with R-Drop."""
    learns = torch.is_grad_enabled()
    compute = partial(compute_loss, targets=targets, smoothing=smoothing, r_drop=r_drop, learns=learns)
    return LossFunction.apply(compute, h, weight, bias)  # type: ignore[no-untyped-call,no-any-return]


def compute_loss(
    h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, r_drop: float, learns: bool
) -> LossAndGradients:
    """Return the summed loss, and the gradients of h, weight and bias, with at most `MAX_LOGITS` logits at a time."""
    W, passes = weight.to(h.dtype), 2 if r_drop else 1
    b = None if bias is None else bias.to(h.dtype)
    half, V = len(h) // passes, len(W)
    losses = h.new_empty(half, dtype=torch.float32)
    dh = torch.empty_like(h)
    dW = torch.zeros_like(W, dtype=torch.float32) if learns else W
    db = None if b is None else torch.zeros_like(b, dtype=torch.float32)
    C = min(4096, next_power_of_two(V))
    h_by_pass, grad_by_pass, kinds = h.view(passes, half, -1), dh.view(passes, half, -1), targets[:half]
    chunk = max(1, MAX_LOGITS // (V * passes))
    for first in range(0, half, chunk):
        rows = h_by_pass[:, first : first + chunk].flatten(0, 1)
        logits = rows @ W.t() if b is None else torch.addmm(b, rows, W.t())
        count = len(rows) // passes
        block = kinds[first : first + chunk], losses[first : first + chunk]
        if r_drop:
            r_drop_kernel[(count,)](logits, *block, count, V, smoothing, r_drop, PAD, C, num_warps=8)
        else:
            cross_entropy_kernel[(count,)](logits, *block, V, smoothing, PAD, C, num_warps=8)
        if learns:
            grad_by_pass[:, first : first + chunk] = (logits @ W).view(passes, count, -1)
            dW += weight_gradient(logits, rows)
            if db is not None:
                db += logits.sum(0, dtype=torch.float32)
    return losses.sum(), dh, dW, db


def weight_gradient(a: Tensor, b: Tensor) -> Tensor:
    """Return aᵀ b in fp32, the gradient of a weight."""
    if a.dtype == torch.float32 or not a.is_cuda:
        return (a.t() @ b).float()
    return torch.mm(a.t(), b, out_dtype=torch.float32)
