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
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.fast.cuda_graphs.cache import ShapeSpec, get_graph_cache
from regard.fast.eligibility import compute_dtype, has_hooks_or_overrides
from regard.fast.gemm import TORCH_GEMM, Gemm
from regard.fast.kernels.fp16 import select_gemm
from regard.fast.training.step_ops import LSTMStep, StepOps, sigmoid_backward, tanh_backward
from regard.nn import State, prefix_mask, state_tensors
from regard.nn.recurrent import Cell, ElmanCell, GRUCell, LSTMCell, last_real_state, unroll_cell

GATE_HOLD = 1e4  # pre-activation that saturates a gate
INPUT_MULTIPLE = 8  # input sizes are padded to multiples of it, for fast products
# Called with the cell, x (B, S, I), lengths, the tensors of the initial state, and the weights and biases.
LayerKernel = Callable[[nn.Module, Tensor, Tensor, list[Tensor], list[Tensor]], tuple[Tensor, State]]

# cuDNN copies the four weights of a cell to one buffer; they are small.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk of memory")


def run_layer(cell: nn.Module, x: Tensor, lengths: Tensor, initial: State | None) -> tuple[Tensor, State]:
    """Run a cell over x (B, S, I).

    Returns:
        outputs (B, S, H), zero behind each end, and the state after the last token of each sentence.
    """
    device = x.device.type
    kernel = LAYER_KERNELS.get(device, {}).get(cell_kind(cell))
    is_cpu_autocast = device == "cpu" and torch.is_autocast_enabled(device)
    if kernel is None or not x.shape[1] or is_cpu_autocast or has_hooks_or_overrides(cell):
        return unroll_cell(cell, x, lengths, initial)
    assert isinstance(cell, Cell)
    initial_tensors = (cell.zero_state(x),) * cell.num_state_tensors if initial is None else state_tensors(initial)
    dtype = compute_dtype(x)
    # With autocast to bf16 cuDNN would compute in fp16, which overflows.
    with torch.autocast(device, enabled=False):
        states, weights = [tensor.to(dtype) for tensor in initial_tensors], [w.to(dtype) for w in cell.parameters()]
        return kernel(cell, x.to(dtype), lengths, states, weights)


def _run_lstm_cpu(
    cell: nn.Module, x: Tensor, lengths: Tensor, initial: list[Tensor], weights: list[Tensor]
) -> tuple[Tensor, State]:
    W, U, b_ih, b_hh = weights
    h, c = initial
    all_states = LSTMFunction.apply(x, h, c, W, U, b_ih + b_hh, select_gemm(x))  # type: ignore[no-untyped-call]
    last = tuple(last_real_state(states, lengths, first) for states, first in zip(all_states, initial, strict=True))
    return all_states[0] * prefix_mask(lengths, x.shape[1])[..., None], last


def _run_reset_before_gru(
    cell: nn.Module, x: Tensor, lengths: Tensor, initial: list[Tensor], weights: list[Tensor]
) -> tuple[Tensor, State]:
    """Run the papers' GRU, with states of at least fp32."""
    W, U, b_ih, b_hh = weights
    h = initial[0].to(torch.promote_types(x.dtype, torch.float32))
    tensors = [x, h, W, U, b_ih + b_hh]
    graphs = get_graph_cache(cell) if x.is_cuda else None
    (hidden_states,) = graphs(gru_sequence, "gru", GRU_SHAPES, tensors) if graphs else gru_sequence(*tensors)
    last = last_real_state(hidden_states, lengths, h)
    return (hidden_states * prefix_mask(lengths, x.shape[1])[..., None]).to(x.dtype), last.to(x.dtype)


def _run_cudnn_lstm(
    cell: nn.Module, x: Tensor, lengths: Tensor, initial: list[Tensor], weights: list[Tensor]
) -> tuple[Tensor, State]:
    """Run cuDNN's LSTM, which returns c only where it stops: behind each end, an extra input holds c.

    This input closes the input gate and opens the forget gate: c_t = 1 · c_{t-1} + 0. With packed sequences, each
    layer would wait for the lengths on the host.
    """
    is_token = prefix_mask(lengths, x.shape[1])[..., None]
    padding_marks = functional.pad((~is_token).to(x.dtype), (0, INPUT_MULTIPLE - 1))
    marker_weights = x.new_zeros(4, INPUT_MULTIPLE)  # of i, f, g, o; filled on the GPU, so that the host need not wait
    marker_weights[0, :1].fill_(-GATE_HOLD)
    marker_weights[1, :1].fill_(GATE_HOLD)
    W_ih, *others = weights
    extended_weight = torch.cat((W_ih, marker_weights.repeat_interleave(len(W_ih) // 4, 0)), 1)
    states = [tensor[None] for tensor in initial]
    marked = torch.cat((x, padding_marks), 2)
    hidden_states, _, c = _run_cudnn(torch._VF.lstm, marked, states, [extended_weight, *others])
    return hidden_states * is_token, (last_real_state(hidden_states, lengths, initial[0]), c[0])


def _run_cudnn(kernel: Callable[..., Any], x: Tensor, states: Tensor | list[Tensor], weights: list[Tensor]) -> Any:
    """Run one layer with biases in one direction, batch first."""
    return kernel(x, states, weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)


def _run_cudnn_masked(
    kernel: Callable[..., Any],
    cell: nn.Module,
    x: Tensor,
    lengths: Tensor,
    initial: list[Tensor],
    weights: list[Tensor],
) -> tuple[Tensor, State]:
    """Run a kernel over the padding, too, and mask its outputs."""
    (h,) = initial
    hidden_states, _ = _run_cudnn(kernel, x, h[None], weights)
    return hidden_states * prefix_mask(lengths, x.shape[1])[..., None], last_real_state(hidden_states, lengths, h)


def cell_kind(cell: nn.Module) -> str:
    """Return the key of a cell type in `LAYER_KERNELS`; subclasses have none."""
    names: dict[type, str] = {ElmanCell: "elman", LSTMCell: "lstm", GRUCell: f"gru-{getattr(cell, 'form', '')}"}
    return names.get(type(cell), "another")


LAYER_KERNELS: dict[str, dict[str, LayerKernel]] = {
    "cuda": {
        "elman": partial(_run_cudnn_masked, torch._VF.rnn_tanh),
        "lstm": _run_cudnn_lstm,
        "gru-torch": partial(_run_cudnn_masked, torch._VF.gru),
        "gru-paper": _run_reset_before_gru,
    },
    "cpu": {"lstm": _run_lstm_cpu, "gru-paper": _run_reset_before_gru},
}

STEP_OPS = StepOps()


class LSTMFunction(Function):
    """LSTM over whole sentences with a hand-written backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h: Tensor, c: Tensor, W: Tensor, U: Tensor, b: Tensor, gemm: Gemm
    ) -> tuple[Tensor, Tensor]:
        """Run the steps."""
        h, c, (rows, length, width) = h.contiguous(), c.contiguous(), x.shape
        gates = gemm.linear(x.reshape(rows * length, width), W.t(), b).view(rows, length, len(b))
        states, cells = x.new_empty(2, rows, length, h.shape[1])
        previous_h, cell_states, V, steps = h, c, gemm.prepack(U.t()), gemm.elementwise or STEP_OPS
        for gate, new_h, new_c in zip(gates.unbind(1), states.unbind(1), cells.unbind(1), strict=True):
            gemm.add_mm(gate, previous_h, V)
            steps.lstm_gates(LSTMStep(gate, cell_states, new_c), new_h, new_h)
            previous_h, cell_states = new_h, new_c
        ctx.gemm = gemm
        ctx.save_for_backward(x, h, c, W, U, gates, states, cells)
        return states, cells

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_states: Tensor, d_cells: Tensor) -> tuple[Tensor | None, ...]:
        """Run the steps in reverse, then the products over all tokens."""
        x, h, c, W, U, gates, states, cells = ctx.saved_tensors
        gate_grads, d_h, d_c = torch.empty_like(gates), torch.zeros_like(h), torch.zeros_like(c)
        gemm: Gemm = ctx.gemm
        cell_states, V, steps = [c, *cells.unbind(1)], gemm.prepack(U), gemm.elementwise or STEP_OPS
        for t in reversed(range(x.shape[1])):
            d_c += d_cells[:, t]
            step = LSTMStep(gates[:, t], cell_states[t], cell_states[t + 1])
            steps.lstm_gates_backward(step, d_states[:, t], d_h, d_c, gate_grads[:, t])
            gemm.mm(gate_grads[:, t], V, out=d_h)
        flat, previous_h = gate_grads.flatten(0, 1), torch.cat((h[:, None], states[:, :-1]), 1).flatten(0, 1)
        d_x = gemm.mm(flat, W).view_as(x)
        dW, db = gemm.linear_grads(flat, x.flatten(0, 1))
        return d_x, d_h, d_c, dW, gemm.mm(flat.t(), previous_h), db, None


GRU_SHAPES = ShapeSpec(["BT-", "B-", "--", "--", "-"], ["BT-"])


def gru_sequence(x: Tensor, h: Tensor, W: Tensor, U: Tensor, b: Tensor) -> tuple[Tensor]:
    """Run the papers' GRU over x (B, S, I) from h (B, H): all h (B, S, H)."""
    states: Tensor = GRUFunction.apply(x, h, W, U, b)  # type: ignore[no-untyped-call]
    return (states,)


class GRUFunction(Function):
    """The papers' GRU over whole sentences with a hand-written backward pass.

    cuDNN has no kernel for it, because its reset gate acts before the product. With half precision inputs, states are
    fp32.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor, W: Tensor, U: Tensor, b: Tensor) -> Tensor:
        """Compute r, z = σ(Wx + Uh + b), h̃ = tanh(Wx + U(r⊙h) + b), h + z⊙(h̃ − h). Gates are kept activated."""
        rows, length, width = x.shape
        size = h.shape[1]
        gates = torch.addmm(b, x.reshape(rows * length, width), W.t()).view(rows, length, 3 * size)
        states = h.new_empty(rows, length, size)
        # h_{t-1} and r⊙h_{t-1}, the inputs of the products
        previous_states, reset_states = x.new_empty(2, rows, length, size)
        U_rz, U_n = (TORCH_GEMM.prepack(tensor.t()) for tensor in U.tensor_split([2 * size]))
        previous_h = h
        for t in range(length):
            rz, n = gates[:, t].tensor_split([2 * size], 1)
            r, z = rz.addmm_(previous_states[:, t].copy_(previous_h), U_rz).sigmoid_().chunk(2, 1)
            n.addmm_(torch.mul(r, previous_states[:, t], out=reset_states[:, t]), U_n).tanh_()
            previous_h = torch.lerp(previous_h, n.to(h.dtype), z.to(h.dtype), out=states[:, t])
        ctx.save_for_backward(x, h, W, U, gates, previous_states, reset_states)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_states: Tensor) -> tuple[Tensor, ...]:
        """Run the steps in reverse, then the products over all tokens."""
        x, h, W, U, gates, previous_states, reset_states = ctx.saved_tensors
        size = h.shape[1]
        U_rz, U_n = U.tensor_split([2 * size])
        gate_grads, d_h = torch.empty_like(gates), torch.zeros_like(h)
        for t in reversed(range(x.shape[1])):
            (r, z, n), (d_r, d_z, d_n) = gates[:, t].chunk(3, 1), gate_grads[:, t].chunk(3, 1)
            d_h += d_states[:, t]
            d_h_cast = d_h.to(x.dtype)
            sigmoid_backward(d_h_cast * (n - previous_states[:, t]), z, grad_input=d_z)
            tanh_backward(d_h_cast * z, n, grad_input=d_n)
            d_reset = d_n @ U_n
            sigmoid_backward(d_reset * previous_states[:, t], r, grad_input=d_r)
            d_h = d_h - d_h * z + d_reset * r + gate_grads[:, t, : 2 * size] @ U_rz
        flat = gate_grads.flatten(0, 1)
        d_rz, d_n = flat.tensor_split([2 * size], 1)
        d_U = torch.cat((d_rz.t() @ previous_states.flatten(0, 1), d_n.t() @ reset_states.flatten(0, 1)))
        return (flat @ W).view_as(x), d_h, flat.t() @ x.flatten(0, 1), d_U, flat.sum(0)
