"""An output layer and its cross-entropy, some rows at a time: on a CPU, where logits of a whole batch fit no cache.

Of a batch of 2,048 tokens and 8,000 words they are 64 MB, which the readable way writes and reads several times, and
for which the system hands out new pages each time. Here a few hundred rows of them exist at a time, the gradients of
what the layer reads and of its weights are taken while they do, and what is padding is left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.fast.halves.way import multiplying
from regard.fast.products import Products
from regard.special_tokens import PAD

LOGITS = 2**23  # numbers, of which there are hardly more at a time
EVEN = 128  # rows, by which sums over them are quick
FEW = 256  # rows, for which it does not pay to lay weights out anew


def losses(
    h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, r_drop: float = 0.0
) -> Tensor:
    """Σ −log p(y), smoothed, of h N,D and ids N, of which PAD counts for nothing; it knows nothing of R-Drop."""
    assert not r_drop
    real = targets != PAD
    if not real.all():
        h, targets = h[real], targets[real]
    return Losses.apply(h, weight, bias, targets, smoothing, torch.is_grad_enabled(), multiplying(h))  # type: ignore[no-untyped-call,no-any-return]


class Losses(Function):
    """The sum, with all gradients, which are taken on the way."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        learns: bool,
        by: Products,
    ) -> Tensor:
        """A scalar."""
        rows = max(1, LOGITS // len(weight))
        rows = rows // EVEN * EVEN or rows
        place = h.new_empty(min(rows, len(h)), len(weight))
        dh = h.new_empty(h.shape) if learns else None
        dW = weight.new_zeros(weight.shape) if learns else None
        db = torch.zeros_like(bias) if learns and bias is not None else None
        total, often = h.new_zeros(()), by.often if len(h) > FEW else lambda b: b
        there, back = often(weight.t()), often(weight) if learns else None
        summed = entropy if by.between is None else by.between.entropy
        for first in range(0, len(h), rows):
            some = h[first : first + rows]
            logits = by.mm(some, there, out=place[: len(some)])
            if bias is not None:
                logits += bias
            total += summed(logits, targets[first : first + rows, None], smoothing)
            if dh is not None and dW is not None:
                by.mm(logits, back, out=dh[first : first + rows], most=1.0)  # differences of probabilities
                by.add(dW, logits.t(), some, most=1.0)
            if db is not None:
                db += logits.sum(0)
        ctx.save_for_backward(dh, dW, db)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        """What is there already, as much as is asked for."""
        return *(None if slope is None else slope * by for slope in ctx.saved_tensors), None, None, None, None


def entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """The loss of logits N,V and ids N,1, summed up; in the place of the logits it leaves their gradients."""
    V = logits.shape[1]
    logits -= logits.amax(1, keepdim=True)
    wanted = (1 - smoothing) * logits.gather(1, targets)
    if smoothing:
        wanted += smoothing * logits.mean(1, keepdim=True)
    whole = logits.exp_().sum(1, keepdim=True)
    logits /= whole
    if smoothing:
        logits -= smoothing / V
    logits.scatter_add_(1, targets, logits.new_full((), smoothing - 1).expand_as(targets))
    return (whole.log() - wanted).sum()
