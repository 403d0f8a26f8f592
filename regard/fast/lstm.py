"""An LSTM over whole sentences with a way back of its own: the twin of `regard.nn.recurrent.unroll_cell` on a CPU.

As in `regard.fast.feeding`, what need not wait for the step before is taken out of the loop: the words' share of the
gates beforehand, the gradients of weights and words afterwards, each as one product over all words of a batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.fast.gates import Squashing
from regard.fast.halves.way import multiplying
from regard.fast.products import Products

STEPS = Squashing()


def steps(x: Tensor, h: Tensor, c: Tensor, W: Tensor, U: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """X B,S,I from h and c B,H by weights W 4H,I and U 4H,H: all h and all c, B,S,H."""
    found: tuple[Tensor, Tensor] = Unrolled.apply(x, h, c, W, U, b, multiplying(x))  # type: ignore[no-untyped-call]
    return found


class Unrolled(Function):
    """All steps, there and back."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h: Tensor, c: Tensor, W: Tensor, U: Tensor, b: Tensor, by: Products
    ) -> tuple[Tensor, Tensor]:
        """One after the other."""
        h, c, (rows, words, width) = h.contiguous(), c.contiguous(), x.shape
        gates = by.affine(x.reshape(rows * words, width), W.t(), b).view(rows, words, len(b))
        states, cells = x.new_empty(2, rows, words, h.shape[1])
        before, kept, V, steps = h, c, by.often(U.t()), by.between or STEPS
        for pre, shown, after in zip(gates.unbind(1), states.unbind(1), cells.unbind(1), strict=True):
            by.add(pre, before, V)
            steps.lstm(pre, kept, after, shown, shown, None, 1.0)
            before, kept = shown, after
        ctx.by = by
        ctx.save_for_backward(x, h, c, W, U, gates, states, cells)
        return states, cells

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_states: Tensor, d_cells: Tensor) -> tuple[Tensor | None, ...]:
        """In reverse, then what was put off."""
        x, h, c, W, U, gates, states, cells = ctx.saved_tensors
        slopes, d_h, d_c = torch.empty_like(gates), torch.zeros_like(h), torch.zeros_like(c)
        by: Products = ctx.by
        kept, V, steps = [c, *cells.unbind(1)], by.often(U), by.between or STEPS
        for t in reversed(range(x.shape[1])):
            d_c += d_cells[:, t]
            steps.lstm_back(gates[:, t], kept[t], kept[t + 1], d_states[:, t], None, 1.0, d_h, d_c, slopes[:, t])
            by.mm(slopes[:, t], V, out=d_h)
        flat, before = slopes.flatten(0, 1), torch.cat((h[:, None], states[:, :-1]), 1).flatten(0, 1)
        d_x = by.mm(flat, W).view_as(x)
        dW, db = by.slopes(flat, x.flatten(0, 1))
        return d_x, d_h, d_c, dW, by.mm(flat.t(), before), db, None
