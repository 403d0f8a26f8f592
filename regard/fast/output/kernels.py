"""Triton kernels of a loss: one program for each row of logits, every sum in fp32, none by atomics."""

from __future__ import annotations

import triton
import triton.language as tl


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
def cross_entropy(logits, targets, found, V, smoothing, PAD: tl.constexpr, C: tl.constexpr):
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
def r_drop(logits, targets, found, half, V, smoothing, alpha, PAD: tl.constexpr, C: tl.constexpr):
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
