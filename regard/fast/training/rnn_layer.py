"""A recurrent layer over whole sentences: the fast twin of `regard.nn.recurrent.unroll_cell`.

The reference loop makes some twenty calls for each token; on a GPU the calls take the time. There cuDNN has kernels,
and what it has none for runs as CUDA graphs. On a CPU the loop is as fast as PyTorch's own kernels, and is replaced
only by autograd functions with a hand-written backward pass: LSTM and the papers' GRU. They take out of the loop what
need not wait for the step before: the input's part of the gates beforehand, the gradients of weights and inputs
afterwards, each as one product over all tokens of a batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.fast.cuda_graphs.cache import graphs
from regard.fast.cuda_graphs.function import Form
from regard.fast.eligibility import heard
from regard.fast.gemm import EXACT, Products
from regard.fast.kernels.fp16 import multiplying
from regard.fast.training.step_ops import Squashing
from regard.nn import State, state_tensors
from regard.nn.recurrent import Cell, ElmanCell, GRUCell, LSTMCell, last_real_state, unroll_cell

HOLD = 1e4  # beside which nothing else counts that a gate reads
EVEN = 8  # inputs at a time, by which products are quick
# Of a cell, words B,S,I, their lengths, the state before the first, and the cell's weights and biases.
Kernel = Callable[[nn.Module, Tensor, Tensor, list[Tensor], list[Tensor]], tuple[Tensor, State]]

# A cell's weights are four tensors of their own, which cuDNN wants in one piece: they are small, and are copied.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk of memory")


def unrolled(cell: nn.Module, x: Tensor, lengths: Tensor, initial: State | None) -> tuple[Tensor, State]:
    """Runs a cell over x B,S,I: outputs B,S,H, zero past each end, and the state after each sentence's last word."""
    device = x.device.type
    kernel = None if heard(cell) or not x.shape[1] else KERNELS.get(device, {}).get(kind(cell))
    if kernel is None or (device == "cpu" and torch.is_autocast_enabled(device)):
        return unroll_cell(cell, x, lengths, initial)
    assert isinstance(cell, Cell)
    begin = (cell.zero_state(x),) * cell.num_state_tensors if initial is None else state_tensors(initial)
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    # Left to itself, autocast has cuDNN count in fp16, which overflows, where it was told bf16.
    with torch.autocast(device, enabled=False):
        return kernel(
            cell, x.to(dtype), lengths, [part.to(dtype) for part in begin], [w.to(dtype) for w in cell.parameters()]
        )


def own_lstm(
    cell: nn.Module, x: Tensor, lengths: Tensor, initial: list[Tensor], weights: list[Tensor]
) -> tuple[Tensor, State]:
    """An LSTM by a loop of ours."""
    W, U, b_ih, b_hh = weights
    h, c = initial
    tracks = lstm_sequence(x, h, c, W, U, b_ih + b_hh)
    last = tuple(last_real_state(track, lengths, first) for track, first in zip(tracks, initial, strict=True))
    return tracks[0] * real(x, lengths), last


def own_gru(
    cell: nn.Module, x: Tensor, lengths: Tensor, initial: list[Tensor], weights: list[Tensor]
) -> tuple[Tensor, State]:
    """The papers' GRU, likewise; its states are in single precision at the least."""
    W, U, b_ih, b_hh = weights
    h = initial[0].to(torch.promote_types(x.dtype, torch.float32))
    tensors = [x, h, W, U, b_ih + b_hh]
    (track,) = graphs(cell)(gru_sequence, "gru", GRU_SHAPES, tensors) if x.is_cuda else gru_sequence(*tensors)
    return (track * real(x, lengths)).to(x.dtype), last_real_state(track, lengths, h).to(x.dtype)


def cudnn_lstm(
    cell: nn.Module, x: Tensor, lengths: Tensor, initial: list[Tensor], weights: list[Tensor]
) -> tuple[Tensor, State]:
    """The LSTM's kernel gives c where it stops reading only: past each end further inputs hold c as it is.

    They shut the input gate and open the forget gate, so that c_t = 1 · c_{t-1} + 0. To pack sentences instead, the
    host would have to know how long they are, and would wait for the card in every layer.
    """
    words = real(x, lengths)
    marks = functional.pad((~words).to(x.dtype), (0, EVEN - 1))
    by = x.new_zeros(4, EVEN)  # of i, f, g, o; filled on the card, so that the host need not wait
    by[0, :1].fill_(-HOLD)
    by[1, :1].fill_(HOLD)
    W_ih, *others = weights
    wide = torch.cat((W_ih, by.repeat_interleave(len(W_ih) // 4, 0)), 1)
    begin = [part[None] for part in initial]
    track, _, c = torch._VF.lstm(
        torch.cat((x, marks), 2), begin, [wide, *others], True, 1, 0.0, torch.is_grad_enabled(), False, True
    )
    return track * words, (last_real_state(track, lengths, initial[0]), c[0])


def cudnn_gru(
    cell: nn.Module, x: Tensor, lengths: Tensor, initial: list[Tensor], weights: list[Tensor]
) -> tuple[Tensor, State]:
    """The GRU of `torch.nn`: all of its state is in its outputs."""
    return cut(torch._VF.gru, x, lengths, initial[0], weights)


def cudnn_elman(
    cell: nn.Module, x: Tensor, lengths: Tensor, initial: list[Tensor], weights: list[Tensor]
) -> tuple[Tensor, State]:
    """Elman's cell, likewise."""
    return cut(torch._VF.rnn_tanh, x, lengths, initial[0], weights)


def cut(
    run: Callable[..., tuple[Tensor, Tensor]], x: Tensor, lengths: Tensor, h: Tensor, weights: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """What a kernel gave that has read the padding too, cut at each end, and the states there."""
    track, _ = run(x, h[None], weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
    return track * real(x, lengths), last_real_state(track, lengths, h)


def real(x: Tensor, lengths: Tensor) -> Tensor:
    """Which of a batch's places are words, B,S,1."""
    return (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]


def kind(cell: nn.Module) -> str:
    """What a cell is called here; one that somebody else made has no kernel."""
    names: dict[type, str] = {ElmanCell: "elman", LSTMCell: "lstm", GRUCell: f"gru-{getattr(cell, 'form', '')}"}
    return names.get(type(cell), "another")


KERNELS: dict[str, dict[str, Kernel]] = {
    "cuda": {"elman": cudnn_elman, "lstm": cudnn_lstm, "gru-torch": cudnn_gru, "gru-paper": own_gru},
    "cpu": {"lstm": own_lstm, "gru-paper": own_gru},
}

STEP_OPS = Squashing()


def lstm_sequence(x: Tensor, h: Tensor, c: Tensor, W: Tensor, U: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """X B,S,I from h and c B,H by weights W 4H,I and U 4H,H: all h and all c, B,S,H."""
    found: tuple[Tensor, Tensor] = LSTMFunction.apply(x, h, c, W, U, b, multiplying(x))  # type: ignore[no-untyped-call]
    return found


class LSTMFunction(Function):
    """All steps, there and back."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h: Tensor, c: Tensor, W: Tensor, U: Tensor, b: Tensor, by: Products
    ) -> tuple[Tensor, Tensor]:
        """One after the other."""
        h, c, (rows, words, width) = h.contiguous(), c.contiguous(), x.shape
        gates = by.affine(x.reshape(rows * words, width), W.t(), b).view(rows, words, len(b))
        states, cells = x.new_empty(2, rows, words, h.shape[1])
        before, kept, V, steps = h, c, by.often(U.t()), by.between or STEP_OPS
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
        kept, V, steps = [c, *cells.unbind(1)], by.often(U), by.between or STEP_OPS
        for t in reversed(range(x.shape[1])):
            d_c += d_cells[:, t]
            steps.lstm_back(gates[:, t], kept[t], kept[t + 1], d_states[:, t], None, 1.0, d_h, d_c, slopes[:, t])
            by.mm(slopes[:, t], V, out=d_h)
        flat, before = slopes.flatten(0, 1), torch.cat((h[:, None], states[:, :-1]), 1).flatten(0, 1)
        d_x = by.mm(flat, W).view_as(x)
        dW, db = by.slopes(flat, x.flatten(0, 1))
        return d_x, d_h, d_c, dW, by.mm(flat.t(), before), db, None


GRU_SHAPES = Form(["BT-", "B-", "--", "--", "-"], ["BT-"])
sigmoid_back, tanh_back = torch.ops.aten.sigmoid_backward.grad_input, torch.ops.aten.tanh_backward.grad_input


def gru_sequence(x: Tensor, h: Tensor, W: Tensor, U: Tensor, b: Tensor) -> tuple[Tensor]:
    """X B,S,I from h B,H by weights W 3H,I and U 3H,H: all h, B,S,H."""
    states: Tensor = GRUFunction.apply(x, h, W, U, b)  # type: ignore[no-untyped-call]
    return (states,)


class GRUFunction(Function):
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
