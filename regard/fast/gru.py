"""The papers' GRU over whole sentences with a way back of its own: the twin of `regard.nn.recurrent.unroll_cell`.

Libraries have no kernel for it: its reset gate acts before the product. As in `regard.fast.lstm`, what need not wait
for the step before is taken out of the loop. Where products are in half precision, states and their gradients are in
single.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.fast.captured import Form
from regard.fast.products import EXACT

FORM = Form(["BT-", "B-", "--", "--", "-"], ["BT-"])
sigmoid_back, tanh_back = torch.ops.aten.sigmoid_backward.grad_input, torch.ops.aten.tanh_backward.grad_input


def steps(x: Tensor, h: Tensor, W: Tensor, U: Tensor, b: Tensor) -> tuple[Tensor]:
    """X B,S,I from h B,H by weights W 3H,I and U 3H,H: all h, B,S,H."""
    states: Tensor = Unrolled.apply(x, h, W, U, b)  # type: ignore[no-untyped-call]
    return (states,)


class Unrolled(Function):
    """All steps, there and back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor, W: Tensor, U: Tensor, b: Tensor) -> Tensor:
        """r, z = σ(Wx + Uh + b);  h̃ = tanh(Wx + U(r⊙h) + b);  h + z⊙(h̃ − h). Gates are left squashed."""
        rows, words, width = x.shape
        size = h.shape[1]
        gates = torch.addmm(b, x.reshape(rows * words, width), W.t()).view(rows, words, 3 * size)
        states = h.new_empty(rows, words, size)
        seen, reset = x.new_empty(2, rows, words, size)  # h_{t-1} and r⊙h_{t-1}, as the products read them
        U_rz, U_n = (EXACT.often(part.t()) for part in U.tensor_split([2 * size]))
        before = h
        for t in range(words):
            rz, n = gates[:, t].tensor_split([2 * size], 1)
            r, z = rz.addmm_(seen[:, t].copy_(before), U_rz).sigmoid_().chunk(2, 1)
            n.addmm_(torch.mul(r, seen[:, t], out=reset[:, t]), U_n).tanh_()
            before = torch.lerp(before, n.to(h.dtype), z.to(h.dtype), out=states[:, t])
        ctx.save_for_backward(x, h, W, U, gates, seen, reset)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_states: Tensor) -> tuple[Tensor, ...]:
        """In reverse, then what was put off."""
        x, h, W, U, gates, seen, reset = ctx.saved_tensors
        size = h.shape[1]
        U_rz, U_n = U.tensor_split([2 * size])
        slopes, d_h = torch.empty_like(gates), torch.zeros_like(h)
        for t in reversed(range(x.shape[1])):
            (r, z, n), (d_r, d_z, d_n) = gates[:, t].chunk(3, 1), slopes[:, t].chunk(3, 1)
            d_h += d_states[:, t]
            came = d_h.to(x.dtype)
            sigmoid_back(came * (n - seen[:, t]), z, grad_input=d_z)
            tanh_back(came * z, n, grad_input=d_n)
            d_reset = d_n @ U_n
            sigmoid_back(d_reset * seen[:, t], r, grad_input=d_r)
            d_h = d_h - d_h * z + d_reset * r + slopes[:, t, : 2 * size] @ U_rz
        flat = slopes.flatten(0, 1)
        d_rz, d_n = flat.tensor_split([2 * size], 1)
        d_U = torch.cat((d_rz.t() @ seen.flatten(0, 1), d_n.t() @ reset.flatten(0, 1)))
        return (flat @ W).view_as(x), d_h, flat.t() @ x.flatten(0, 1), d_U, flat.sum(0)
