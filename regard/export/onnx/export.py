"""ONNX export: one graph that encodes a source and one graph for each step of decoding.

A recurrent layer becomes one ONNX operation (LSTM, GRU or RNN) through a custom operation of PyTorch.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxscript import opset18
from torch import Tensor, nn

from regard.export.onnx.decoder_states import (
    ENCODER,
    SHARED,
    STEP,
    B,
    Mould,
    S,
    W,
    begun,
    laid,
    sample,
)
from regard.export.onnx.graph_passes import fold, spell_out, untie
from regard.fast.training.rnn_layer import kind
from regard.models import Seq2Seq, decoder_state
from regard.nn import Memory, Recurrent, State, state_tensors
from regard.nn.recurrent import ElmanCell, GRUCell, LSTMCell, unroll_cell

ROWS, PLACES, WRITTEN = map(torch.export.Dim, ("rows", "places", "written"))
SOURCES = torch.export.Dim(SHARED)
BEAM = 3  # hypotheses of a source to trace with


class Reading(nn.Module):
    """Source ids B,S and lengths B -> the tensors of the state before the first token."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        """Encodes and starts."""
        return tuple(decoder_state.distinct_tensors(begun(self.model, source, lengths)).values())


class Stepping(nn.Module):
    """Tokens B and the tensors of a state -> log-probabilities B,V, attention B,S, and the tensors that it changed."""

    def __init__(self, decoder: Any, state: Any, changing: Sequence[str]) -> None:
        super().__init__()
        self.decoder = decoder
        self.state = state  # one that every other is made like
        self.changing = changing

    def forward(self, tokens: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        """One step."""
        state = decoder_state.replace_distinct_tensors(self.state, leaves)
        log_probs, after, attended = self.decoder.step(state, tokens)
        look = [] if attended is None else [attended.dense(source_size(state))[:, 0]]
        changed = decoder_state.distinct_tensors(after)
        return log_probs, *look, *(changed[name] for name in self.changing)


@torch.no_grad()
def changing(decoder: Any, state: Any) -> list[str]:
    """The names of what a step changes in a state; the rest is known of the source and stays."""
    tokens = torch.zeros(len(next(decoder_state.tensors(state))), dtype=torch.long)
    _, after, _ = decoder.step(state, tokens)
    before = {id(leaf) for leaf in decoder_state.tensors(state)}
    return [name for name, leaf in decoder_state.distinct_tensors(after).items() if id(leaf) not in before]


def source_size(state: Any) -> int:
    """How many source positions a state knows of."""
    if isinstance(state, Memory):
        return state.mask.shape[1]
    branches = state if isinstance(state, list | tuple) else ()
    return next((size for size in map(source_size, branches) if size), 0)


def dynamic(model: Any) -> dict[str, dict[int, Any]]:
    """Which sizes of a state's tensors change, by name: found by changing what they depend on."""
    shapes = [
        {name: leaf.shape for name, leaf in decoder_state.distinct_tensors(state).items()}
        for state in (sample(model), sample(model, places=S + 1), sample(model, written=W + 1))
    ]
    names = (ROWS, PLACES, WRITTEN)
    found: dict[str, dict[int, Any]] = {}
    for leaf, shape in shapes[0].items():
        found[leaf] = {0: names[0]}
        for name, other in zip(names[1:], shapes[1:], strict=True):
            found[leaf] |= {place: name for place, size in enumerate(shape) if other[leaf][place] != size}
    return found


def export(model: Seq2Seq, folder: Path, int8: bool = False) -> None:
    """Writes both graphs; with `int8` the weights of matrix products are bytes, a scale for each column."""
    own = laid(copy.deepcopy(model).cpu().float()).eval()
    for module in own.modules():
        if isinstance(module, Recurrent):
            module.unroll = whole
    folder.mkdir(parents=True, exist_ok=True)
    source, lengths = torch.full((B, S), 4), torch.full((B,), S)
    state = sample(own)
    changed, sizes = changing(own.decoder, state), dynamic(own)
    if own.decoder.supports_shared_memory:  # hypotheses of one source look at it together
        sizes |= {name: {**sizes[name], 0: SOURCES} for name in Mould(state).staying & sizes.keys()}
        state = own.decoder.expand_beams(state, BEAM)
    leaves = decoder_state.distinct_tensors(state)
    reading = Graph(["source", "lengths"], list(leaves), ({0: ROWS, 1: PLACES}, {0: ROWS}))
    reading.write(Reading(own), (source, lengths), folder / ENCODER, int8)
    look = ["attention"] if source_size(state) else []
    shapes = ({0: ROWS}, tuple(sizes[name] for name in leaves))
    stepping = Graph(["tokens", *leaves], ["log_probs", *look, *(f"new.{name}" for name in changed)], shapes)
    tokens = torch.full((B * BEAM if own.decoder.supports_shared_memory else B,), 4)
    stepping.write(Stepping(own.decoder, state, changed), (tokens, *leaves.values()), folder / STEP, int8)


class Graph(NamedTuple):
    """How a graph is called: its inputs and outputs by name, and which of the inputs' sizes change."""

    inputs: list[str]
    outputs: list[str]
    shapes: Any

    def write(self, module: nn.Module, arguments: tuple[Tensor, ...], path: Path, int8: bool) -> None:
        """Traces a module and writes it to a file."""
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                module.eval(),
                arguments,
                dynamo=True,
                input_names=self.inputs,
                output_names=self.outputs,
                dynamic_shapes=self.shapes,
                custom_translation_table=TRANSLATIONS,
                verbose=False,
            )
            assert program is not None
            made = program.model_proto
            del made.graph.value_info[:]  # sizes that the exporter guessed, some of them wrongly
            spell_out(made.graph)
            if int8:
                fold(made)  # weights that only a run computes are not quantised
                untie(made.graph)
            onnx.save(made, path)
            if int8:
                thin = vectors(made)
                # Seven bits: older x86 processors add up products of eight in sixteen, where they are cut off.
                quantize_dynamic(
                    path, path, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True, nodes_to_exclude=thin
                )


def vectors(made: Any) -> list[str]:
    """The products with a single vector, as v_a of a concat score: onnxruntime has none of them in bytes."""
    single = {weight.name for weight in made.graph.initializer if len(weight.dims) < 2 or 1 in weight.dims}
    return [node.name for node in made.graph.node if node.op_type == "MatMul" and single.intersection(node.input)]


@contextmanager
def quiet() -> Iterator[None]:
    """The exporter says much that nobody can act on."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


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
