"""A recurrent layer as one operation, which ONNX has by the names of LSTM, GRU and RNN."""

from __future__ import annotations

from typing import Any

import torch
from onnxscript import opset18
from torch import Tensor, nn

from regard.fast.layer import kind
from regard.nn import State, state_tensors
from regard.nn.recurrent import ElmanCell, GRUCell, LSTMCell, unroll_cell

op: Any = opset18  # its types know of tensors alone; it takes plain lists too


@torch.library.custom_op("regard::layer", mutates_args=())
def layer(x: Tensor, lengths: Tensor, weights: list[Tensor], kind: str) -> list[Tensor]:
    """Outputs B,S,H of a cell over x B,S,I, and the tensors of its last state, B,H each.

    `weights` are those of a cell in their order; the only use of what stands here is to be translated to ONNX.
    """
    cell = CELLS[kind](weights[0].shape[1], weights[1].shape[1])
    for parameter, weight in zip(cell.parameters(), weights, strict=True):
        parameter.data = weight
    outputs, last = unroll_cell(cell, x, lengths, None)
    return [outputs, *(part.clone() for part in state_tensors(last))]


@layer.register_fake
def _(x: Tensor, lengths: Tensor, weights: list[Tensor], kind: str) -> list[Tensor]:
    size = weights[1].shape[1]
    tracks = LSTMCell.num_state_tensors if kind == "lstm" else 1
    return [x.new_empty(x.shape[0], x.shape[1], size), *(x.new_empty(x.shape[0], size) for _ in range(tracks))]


CELLS: dict[str, Any] = {
    "elman": ElmanCell,
    "lstm": LSTMCell,
    "gru-paper": GRUCell,
    "gru-torch": lambda inputs, size: GRUCell(inputs, size, "torch"),
}


def whole(cell: nn.Module, x: Tensor, lengths: Tensor, initial: State | None) -> tuple[Tensor, State]:
    """Unrolls a cell in one operation; a fast path of `regard.nn.recurrent.unroll_cell`."""
    if initial is not None:
        return unroll_cell(cell, x, lengths, initial)
    outputs, *last = layer(x, lengths, list(cell.parameters()), kind(cell))
    return outputs, last[0] if len(last) == 1 else tuple(last)


def translated(x: Any, lengths: Any, weights: Any, kind: str) -> Any:
    """The operation `layer` in ONNX, for its exporter."""
    W, R, b, c = (GATES[kind](weight) for weight in weights)
    size = weights[1].shape[1]
    inputs = (
        op.Transpose(x, perm=[1, 0, 2]),
        op.Unsqueeze(W, [0]),
        op.Unsqueeze(R, [0]),
        op.Unsqueeze(op.Concat(b, c, axis=0), [0]),
        op.Cast(lengths, to=INT32),
    )
    if kind == "lstm":
        Y, *last = op.LSTM(*inputs, hidden_size=size)
    elif kind == "elman":
        Y, *last = op.RNN(*inputs, hidden_size=size)
    else:
        Y, *last = op.GRU(*inputs, hidden_size=size, linear_before_reset=int(kind == "gru-torch"))
    outputs = op.Transpose(op.Squeeze(Y, [1]), perm=[1, 0, 2])
    return [outputs, *(op.Squeeze(part, [0]) for part in last)]


def of_lstm(weight: Any) -> Any:
    """Gates i, f, g, o in ONNX's order i, o, f, g."""
    i, f, g, o = op.Split(weight, num_outputs=4, axis=0)
    return op.Concat(i, o, f, g, axis=0)


def of_torch_gru(weight: Any) -> Any:
    """Gates r, z, n in ONNX's order z, r, n."""
    r, z, n = op.Split(weight, num_outputs=3, axis=0)
    return op.Concat(z, r, n, axis=0)


def of_paper_gru(weight: Any) -> Any:
    """The same; ONNX's z keeps the old state, the paper's lets the new one in: 1 − σ(z) = σ(−z)."""
    r, z, n = op.Split(weight, num_outputs=3, axis=0)
    return op.Concat(op.Neg(z), r, n, axis=0)


INT32 = 6  # as ONNX numbers its types
GATES = {"elman": lambda weight: weight, "lstm": of_lstm, "gru-torch": of_torch_gru, "gru-paper": of_paper_gru}
TRANSLATIONS: dict[Any, Any] = {torch.ops.regard.layer.default: translated}
