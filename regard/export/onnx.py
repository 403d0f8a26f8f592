"""ONNX export: one graph that encodes a source and one graph for each step of decoding.

A recurrent layer becomes one ONNX operation (LSTM, GRU or RNN) through a custom operation of PyTorch. The finished
graphs are rewritten: constants are folded, and a vocabulary shortlist makes the output layer an input.
"""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxscript import opset18, optimizer
from torch import Tensor, nn

from regard.errors import UserError
from regard.export.onnx_engine import (
    ENCODER,
    SHARED,
    STEP,
    B,
    S,
    StateTemplate,
    W,
    initial_state,
    make_example_state,
    make_head_major,
)
from regard.fast.training.rnn_layer import cell_kind
from regard.models import Seq2Seq, decoder_state
from regard.nn import Memory, Recurrent, State, state_tensors
from regard.nn.recurrent import ElmanCell, GRUCell, LSTMCell, unroll_cell

ROW_DIM, SOURCE_DIM, TARGET_DIM = map(torch.export.Dim, ("rows", "places", "written"))
SHARED_DIM = torch.export.Dim(SHARED)
TRACED_BEAM = 3  # hypotheses per source in the traced example


class EncoderGraph(nn.Module):
    """Source ids (B, S) and lengths (B,) -> the tensors of the initial state."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        """Encode, and return the tensors of the initial state."""
        return tuple(decoder_state.distinct_tensors(initial_state(self.model, source, lengths)).values())


class StepGraph(nn.Module):
    """Tokens (B,) and state tensors -> log-probabilities (B, V), attention (B, S), and the changed state tensors."""

    def __init__(self, decoder: Any, state: Any, changing: Sequence[str]) -> None:
        super().__init__()
        self.decoder = decoder
        self.state = state  # template of the other states
        self.changing = changing

    def forward(self, tokens: Tensor, *state_tensors: Tensor) -> tuple[Tensor, ...]:
        """Take one step."""
        state = decoder_state.replace_distinct_tensors(self.state, state_tensors)
        log_probs, after, attended = self.decoder.step(state, tokens)
        attention = [] if attended is None else [attended.dense(_source_length(state))[:, 0]]
        changed = decoder_state.distinct_tensors(after)
        return log_probs, *attention, *(changed[name] for name in self.changing)


@torch.no_grad()
def _find_changed_names(decoder: Any, state: Any) -> list[str]:
    """Return the names of the state tensors that a step changes; the others depend on the source only."""
    tokens = torch.zeros(len(next(decoder_state.tensors(state))), dtype=torch.long)
    _, after, _ = decoder.step(state, tokens)
    before = {id(leaf) for leaf in decoder_state.tensors(state)}
    return [name for name, leaf in decoder_state.distinct_tensors(after).items() if id(leaf) not in before]


def _source_length(state: Any) -> int:
    """Return the number of source positions of a state."""
    if isinstance(state, Memory):
        return state.mask.shape[1]
    branches = state if isinstance(state, list | tuple) else ()
    return next((size for size in map(_source_length, branches) if size), 0)


def _dynamic_axes(model: Any) -> dict[str, dict[int, Any]]:
    """Return the dynamic axes of state tensors by name, found by varying source and target lengths."""
    shapes = [
        {name: leaf.shape for name, leaf in decoder_state.distinct_tensors(state).items()}
        for state in (
            make_example_state(model),
            make_example_state(model, source_length=S + 1),
            make_example_state(model, num_tokens=W + 1),
        )
    ]
    found: dict[str, dict[int, Any]] = {name: {0: ROW_DIM} for name in shapes[0]}
    for dimension, others in zip((SOURCE_DIM, TARGET_DIM), shapes[1:], strict=True):
        for name, shape in shapes[0].items():
            found[name] |= {axis: dimension for axis, size in enumerate(shape) if others[name][axis] != size}
    return found


def export(model: Seq2Seq, folder: Path, int8: bool = False) -> None:
    """Write both graphs; with `int8` matrix weights are int8 with one scale per column."""
    exported = make_head_major(copy.deepcopy(model).cpu().float()).eval()
    for module in exported.modules():
        if isinstance(module, Recurrent):
            module.unroll = run_as_op
    folder.mkdir(parents=True, exist_ok=True)
    source, lengths = torch.full((B, S), 4), torch.full((B,), S)
    state = make_example_state(exported)
    changed, sizes = _find_changed_names(exported.decoder, state), _dynamic_axes(exported)
    if exported.decoder.supports_shared_memory:  # hypotheses share the memory of their source
        sizes |= {name: {**sizes[name], 0: SHARED_DIM} for name in StateTemplate(state).shared_names & sizes.keys()}
        state = exported.decoder.expand_beams(state, TRACED_BEAM)
    state_tensors = decoder_state.distinct_tensors(state)
    inputs, shapes = {"source": source, "lengths": lengths}, ({0: ROW_DIM, 1: SOURCE_DIM}, {0: ROW_DIM})
    _write_graph(EncoderGraph(exported), folder / ENCODER, int8, inputs, list(state_tensors), shapes)
    tokens = torch.full((B * TRACED_BEAM if exported.decoder.supports_shared_memory else B,), 4)
    inputs, step_shapes = {"tokens": tokens, **state_tensors}, tuple(sizes[name] for name in state_tensors)
    attention = ["attention"] if _source_length(state) else []
    outputs = ["log_probs", *attention, *(f"new.{name}" for name in changed)]
    step_graph = StepGraph(exported.decoder, state, changed)
    _write_graph(step_graph, folder / STEP, int8, inputs, outputs, ({0: ROW_DIM}, step_shapes))


def _write_graph(
    module: nn.Module, path: Path, int8: bool, inputs: dict[str, Tensor], outputs: list[str], shapes: Any
) -> None:
    """Export a module to a file, given example inputs, names of the outputs, and the dynamic axes of the inputs."""
    with _silence_exporter(), torch.no_grad():
        program = torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            dynamo=True,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_shapes=shapes,
            custom_translation_table=TRANSLATION_TABLE,
            verbose=False,
        )
        assert program is not None
        made = program.model_proto
        del made.graph.value_info[:]  # shapes that the exporter inferred, some of them wrongly
        if int8:
            made = fold(made)  # weights that are computed in the graph would not be quantized
            untie_gemm_weights(made.graph)
        onnx.save(made, path)
        if int8:
            thin = _matvec_nodes(made)
            # Seven bits: x86 CPUs without VNNI add products of int8 in int16, which saturates.
            quantize_dynamic(
                path, path, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True, nodes_to_exclude=thin
            )


def _matvec_nodes(made: Any) -> list[str]:
    """Return the products with a single vector, such as v_a of a concat score, which onnxruntime has not in int8."""
    single = {weight.name for weight in made.graph.initializer if len(weight.dims) < 2 or 1 in weight.dims}
    return [node.name for node in made.graph.node if node.op_type == "MatMul" and single.intersection(node.input)]


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Suppress warnings and log messages of the exporter."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


op: Any = opset18  # typed for tensors only, but takes lists too


@torch.library.custom_op("regard::layer", mutates_args=())
def rnn_layer(x: Tensor, lengths: Tensor, weights: list[Tensor], kind: str) -> list[Tensor]:
    """Return outputs (B, S, H) of a cell over x (B, S, I), and the tensors (B, H) of its last state.

    `weights` are those of a cell in their order. This implementation exists to be translated to ONNX.
    """
    cell = CELL_TYPES[kind](weights[0].shape[1], weights[1].shape[1])
    for parameter, weight in zip(cell.parameters(), weights, strict=True):
        parameter.data = weight
    outputs, last = unroll_cell(cell, x, lengths, None)
    return [outputs, *(part.clone() for part in state_tensors(last))]


@rnn_layer.register_fake
def _(x: Tensor, lengths: Tensor, weights: list[Tensor], kind: str) -> list[Tensor]:
    size = weights[1].shape[1]
    tracks = LSTMCell.num_state_tensors if kind == "lstm" else 1
    return [x.new_empty(x.shape[0], x.shape[1], size), *(x.new_empty(x.shape[0], size) for _ in range(tracks))]


CELL_TYPES: dict[str, Any] = {
    "elman": ElmanCell,
    "lstm": LSTMCell,
    "gru-paper": GRUCell,
    "gru-torch": lambda inputs, size: GRUCell(inputs, size, "torch"),
}


def run_as_op(cell: nn.Module, x: Tensor, lengths: Tensor, initial: State | None) -> tuple[Tensor, State]:
    """Run a cell as one operation; a twin of `regard.nn.recurrent.unroll_cell`."""
    if initial is not None:
        return unroll_cell(cell, x, lengths, initial)
    outputs, *last = rnn_layer(x, lengths, list(cell.parameters()), cell_kind(cell))
    return outputs, last[0] if len(last) == 1 else tuple(last)


def _to_onnx(x: Any, lengths: Any, weights: Any, kind: str) -> Any:
    """Translate the operation to ONNX, for the exporter."""
    size = weights[1].shape[1]
    W, R, b, c = (_reorder_gates(weight, kind, size) for weight in weights)
    inputs = (
        op.Transpose(x, perm=[1, 0, 2]),
        op.Unsqueeze(W, [0]),
        op.Unsqueeze(R, [0]),
        op.Unsqueeze(op.Concat(b, c, axis=0), [0]),
        op.Cast(lengths, to=ONNX_INT32),
    )
    if kind == "lstm":
        Y, *last = op.LSTM(*inputs, hidden_size=size)
    elif kind == "elman":
        Y, *last = op.RNN(*inputs, hidden_size=size)
    else:
        Y, *last = op.GRU(*inputs, hidden_size=size, linear_before_reset=int(kind == "gru-torch"))
    outputs = op.Transpose(op.Squeeze(Y, [1]), perm=[1, 0, 2])
    return [outputs, *(op.Squeeze(part, [0]) for part in last)]


def _reorder_gates(weight: Any, kind: str, size: int) -> Any:
    """Reorder gates i, f, g, o to ONNX's order i, o, f, g, and r, z, n to z, r, n.

    ONNX's z keeps the old state, the paper's takes the new one: 1 − σ(z) = σ(−z).
    """
    if kind == "elman":
        return weight
    order = (0, 3, 1, 2) if kind == "lstm" else (1, 0, 2)
    # Not a Split, which has several outputs: the optimizer computes constants of nodes with one.
    first, *others = (op.Slice(weight, [gate * size], [(gate + 1) * size], [0]) for gate in range(len(order)))
    gates = [first, op.Neg(others[0]), others[1]] if kind == "gru-paper" else [first, *others]
    return op.Concat(*(gates[number] for number in order), axis=0)


ONNX_INT32 = 6  # number of the type in ONNX
TRANSLATION_TABLE: dict[Any, Any] = {torch.ops.regard.layer.default: _to_onnx}


def fold(onnx_model: Any) -> Any:
    """Return the model with constant subgraphs computed, such as transposed weights, which the exporter leaves."""
    no_limit = sys.maxsize
    return optimizer.optimize(
        onnx_model, onnx_shape_inference=False, input_size_limit=no_limit, output_size_limit=no_limit
    )


def untie_gemm_weights(graph: Any) -> None:
    """Give Gemm nodes their own transposed weights: quantization transposes in place, which would break embeddings."""
    initializers = {weight.name: weight for weight in graph.initializer}
    for node in graph.node:
        transposed = next((one for one in node.attribute if one.name == "transB" and one.i), None)
        if node.op_type != "Gemm" or transposed is None or node.input[1] not in initializers:
            continue
        name = f"{node.input[1]}.transposed"
        if name not in initializers:
            weight = np.ascontiguousarray(numpy_helper.to_array(initializers[node.input[1]]).T)
            initializers[name] = numpy_helper.from_array(weight, name)
            graph.initializer.append(initializers[name])
        node.input[1], transposed.i = name, 0
    _drop_unused_weights(graph)


def _drop_unused_weights(graph: Any) -> None:
    read = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    for weight in [weight for weight in graph.initializer if weight.name not in read]:
        graph.initializer.remove(weight)


MATMULS = ("Gemm", "MatMul", "MatMulInteger")
QUANTIZE = "DynamicQuantizeLinear"
INPUT = "among."  # prefix of the names of these inputs


class OutputRows(NamedTuple):
    """Weights of an output layer, and which of their dimensions is the vocabulary."""

    weights: np.ndarray[Any, Any]
    vocabulary_dim: int

    def select(self, token_ids: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return the weights of some tokens."""
        return np.ascontiguousarray(self.weights.take(token_ids, self.vocabulary_dim))


def open_output_layer(path: Path) -> tuple[bytes, dict[str, OutputRows]]:
    """Return the graph with the output layer as inputs, and the weights for these inputs by name."""
    onnx_model = fold(onnx.load(path))
    graph = onnx_model.graph
    initializers = {weight.name: weight for weight in graph.initializer}
    output_rows = {}
    *following, product = _nodes_after_matmul(graph)
    if product.op_type not in MATMULS or product.input[1] not in initializers:
        raise UserError(f"{path} was exported by a version without shortlists; export it again")
    for node, input_index, vocabulary_dim in list(_output_layer_inputs(product, following, initializers)):
        weight = initializers[node.input[input_index]]
        node.input[input_index] = name = INPUT + weight.name
        if name not in output_rows:
            output_rows[name] = OutputRows(numpy_helper.to_array(weight), vocabulary_dim)
            sizes = ["words" if dimension == vocabulary_dim else size for dimension, size in enumerate(weight.dims)]
            graph.input.append(helper.make_tensor_value_info(name, weight.data_type, sizes))
    _drop_unused_weights(graph)
    graph.output[0].type.tensor_type.shape.dim[1].dim_param = "words"
    return onnx_model.SerializeToString(), output_rows


def _output_layer_inputs(
    product: Any, following: Sequence[Any], initializers: dict[str, Any]
) -> Iterator[tuple[Any, int, int]]:
    """Yield where weights of the output layer are used: node, index of the input, and vocabulary dimension.

    These are the weights with one number per token in the last product and in the nodes after it.
    """
    vocabulary_dim = 0 if any(attribute.name == "transB" and attribute.i for attribute in product.attribute) else 1
    vocabulary_size = initializers[product.input[1]].dims[vocabulary_dim]
    yield product, 1, vocabulary_dim
    for node in (product, *following):
        for input_index, name in enumerate(node.input):
            if name in initializers and list(initializers[name].dims) == [vocabulary_size]:
                yield node, input_index, 0


def _nodes_after_matmul(graph: Any) -> list[Any]:
    """Return the nodes from the log-probabilities back to the last product, which is the last of the list."""
    makers = {name: node for node in graph.node for name in node.output}
    found: dict[str, Any] = {}
    waiting = [graph.output[0].name]
    while waiting:
        node = makers.get(waiting.pop())
        if node is not None and node.op_type != QUANTIZE and node.output[0] not in found:
            found[node.output[0]] = node
            waiting.extend(() if node.op_type in MATMULS else node.input)
    return sorted(found.values(), key=lambda node: node.op_type in MATMULS)
