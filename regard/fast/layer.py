"""A recurrent layer over whole sentences in one call, the fast twin of `regard.nn.recurrent.unroll_cell`.

The readable loop makes some twenty calls for each word; on a GPU the calls, not the sums, are what takes the time.
There cuDNN has kernels, and what it has none for is recorded as CUDA graphs. On a CPU the loop is as fast as PyTorch's
own kernels, and stays, but where there is one with a way back of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.fast import gru, lstm
from regard.fast.captured import graphs
from regard.fast.hearing import heard
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
    tracks = lstm.steps(x, h, c, W, U, b_ih + b_hh)
    last = tuple(last_real_state(track, lengths, first) for track, first in zip(tracks, initial, strict=True))
    return tracks[0] * real(x, lengths), last


def own_gru(
    cell: nn.Module, x: Tensor, lengths: Tensor, initial: list[Tensor], weights: list[Tensor]
) -> tuple[Tensor, State]:
    """The papers' GRU, likewise; its states are in single precision at the least."""
    W, U, b_ih, b_hh = weights
    h = initial[0].to(torch.promote_types(x.dtype, torch.float32))
    tensors = [x, h, W, U, b_ih + b_hh]
    (track,) = graphs(cell)(gru.steps, "gru", gru.FORM, tensors) if x.is_cuda else gru.steps(*tensors)
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
