"""An output layer and its loss with few passes over the logits: the twin of `rows` for a GPU with Triton."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.fast.kernels import power
from regard.fast.output import kernels
from regard.special_tokens import PAD

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
                kernels.r_drop[(count,)](logits, *here, count, V, smoothing, r_drop, PAD, C, num_warps=8)
            else:
                kernels.cross_entropy[(count,)](logits, *here, V, smoothing, PAD, C, num_warps=8)
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
