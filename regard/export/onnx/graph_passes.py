"""Rewrites of ONNX graphs: constant folding, and the output layer as an input."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxscript import optimizer

from regard.errors import UserError


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
