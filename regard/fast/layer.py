"""A recurrent layer over whole sentences in one call: cuDNN's kernels, the fast twin of `regard.nn.recurrent.unroll`.

The readable loop makes some twenty calls for each word; on a GPU the calls, not the sums, are what takes the time. On
a CPU it is as fast as PyTorch's own kernels, and stays, but for LSTMs, which have a loop of their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.fast.hearing import heard
from regard.fast.lstm import steps
from regard.nn import State, parts
from regard.nn.cell import Cell, ElmanCell, GRUCell, LSTMCell
from regard.nn.recurrent import at_end, unroll

HOLD = 1e4  # beside which nothing else counts that a gate reads
EVEN = 8  # inputs at a time, by which products are quick
Kernel = Callable[[Tensor, Tensor, list[Tensor], list[Tensor]], tuple[Tensor, State]]

# A cell's weights are four tensors of their own, which cuDNN wants in one piece: they are small, and are copied.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk of memory")


def unrolled(cell: nn.Module, x: Tensor, lengths: Tensor, initial: State | None) -> tuple[Tensor, State]:
    """Runs a cell over x B,S,I: outputs B,S,H, zero past each end, and the state after each sentence's last word."""
    kernel = None if heard(cell) else KERNELS.get(kind(cell))
    if kernel is lstm and x.device.type == "cpu" and x.shape[1] and not torch.is_autocast_enabled("cpu"):
        return by_hand(cell, x, lengths, initial)
    if kernel is None or not x.is_cuda or not x.shape[1]:
        return unroll(cell, x, lengths, initial)
    assert isinstance(cell, Cell)
    begin = (cell.zeros(x),) * cell.tracks if initial is None else parts(initial)
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    # Left to itself, autocast has these kernels count in fp16, which overflows, where it was told bf16.
    with torch.autocast("cuda", enabled=False):
        return kernel(
            x.to(dtype), lengths, [part.to(dtype) for part in begin], [w.to(dtype) for w in cell.parameters()]
        )


def by_hand(cell: nn.Module, x: Tensor, lengths: Tensor, initial: State | None) -> tuple[Tensor, State]:
    """An LSTM on a CPU."""
    assert isinstance(cell, LSTMCell)
    h, c = (cell.zeros(x), cell.zeros(x)) if initial is None else parts(initial)
    tracks = steps(x, h, c, cell.weight_ih, cell.weight_hh, cell.bias_ih + cell.bias_hh)
    last = tuple(at_end(track, lengths, first) for track, first in zip(tracks, (h, c), strict=True))
    real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return tracks[0] * real[..., None], last


def lstm(x: Tensor, lengths: Tensor, initial: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, State]:
    """The LSTM's kernel gives c where it stops reading only: past each end further inputs hold c as it is.

    They shut the input gate and open the forget gate, so that c_t = 1 · c_{t-1} + 0. To pack sentences instead, the
    host would have to know how long they are, and would wait for the card in every layer.
    """
    past = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
    marks = functional.pad(past[..., None].to(x.dtype), (0, EVEN - 1))
    by = functional.pad(x.new_tensor([-HOLD, HOLD, 0.0, 0.0])[:, None], (0, EVEN - 1))  # of i, f, g, o
    W_ih, *others = weights
    wide = torch.cat((W_ih, by.repeat_interleave(len(W_ih) // 4, 0)), 1)
    begin = [part[None] for part in initial]
    track, _, c = torch._VF.lstm(
        torch.cat((x, marks), 2), begin, [wide, *others], True, 1, 0.0, torch.is_grad_enabled(), False, True
    )
    return track * ~past[..., None], (at_end(track, lengths, initial[0]), c[0])


def gru(x: Tensor, lengths: Tensor, initial: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, State]:
    """The GRU of `torch.nn`: all of its state is in its outputs."""
    return cut(torch._VF.gru, x, lengths, initial[0], weights)


def elman(x: Tensor, lengths: Tensor, initial: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, State]:
    """Elman's cell, likewise."""
    return cut(torch._VF.rnn_tanh, x, lengths, initial[0], weights)


def cut(
    run: Callable[..., tuple[Tensor, Tensor]], x: Tensor, lengths: Tensor, h: Tensor, weights: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """What a kernel gave that has read the padding too, cut at each end, and the states there."""
    track, _ = run(x, h[None], weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
    real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return track * real[..., None], at_end(track, lengths, h)


def kind(cell: nn.Module) -> str:
    """What a cell is called here; one that somebody else made has no kernel, and neither has the papers' GRU."""
    names: dict[type, str] = {ElmanCell: "elman", LSTMCell: "lstm", GRUCell: f"gru-{getattr(cell, 'form', '')}"}
    return names.get(type(cell), "another")


KERNELS: dict[str, Kernel] = {"elman": elman, "lstm": lstm, "gru-torch": gru}
