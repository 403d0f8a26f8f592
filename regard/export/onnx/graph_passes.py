"""Rewrites of ONNX graphs: layer norm decomposition, constant folding, and the output layer as an input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from regard.errors import UserError

NORM = "LayerNormalization"


def spell_out(graph: Any) -> None:
    """Puts (x − mean) · 1/√(var + ε) · γ + β in the place of every layer norm over the last dimension."""
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        if node.op_type == NORM and given.get("axis", -1) == -1 and len(node.output) == 1:
            graph.node.extend(spelt(graph, node, given.get("epsilon", 1e-5)))
        else:
            graph.node.append(node)


def spelt(graph: Any, node: Any, epsilon: float) -> Iterator[Any]:
    """The operations that one is made of."""
    (x, gamma, *beta), [out] = node.input, node.output
    last, small = f"{out}.last", f"{out}.epsilon"
    graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), last))
    graph.initializer.append(numpy_helper.from_array(np.array(epsilon, np.float32), small))
    steps = [
        ("ReduceMean", (x, last), f"{out}.mean"),
        ("Sub", (x, f"{out}.mean"), f"{out}.centred"),
        ("Mul", (f"{out}.centred", f"{out}.centred"), f"{out}.squared"),
        ("ReduceMean", (f"{out}.squared", last), f"{out}.variance"),
        ("Add", (f"{out}.variance", small), f"{out}.positive"),
        ("Sqrt", (f"{out}.positive",), f"{out}.deviation"),
        ("Reciprocal", (f"{out}.deviation",), f"{out}.inverse"),
        ("Mul", (f"{out}.centred", f"{out}.inverse"), f"{out}.normed"),
        ("Mul", (f"{out}.normed", gamma), f"{out}.scaled" if beta else out),
        *(("Add", (f"{out}.scaled", one), out) for one in beta),
    ]
    for kind, given, found in steps:
        yield helper.make_node(kind, given, [found], name=f"{node.name}.{found}")


FOLDED = {"Cast", "Concat", "Identity", "Neg", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}


def fold(made: Any) -> None:
    """Computes what is known beforehand, as turned or reordered weights; the exporter leaves it to every run."""
    graph = made.graph
    known = {weight.name: weight for weight in graph.initializer}
    for node in list(graph.node):
        if node.op_type not in FOLDED or any(name and name not in known for name in node.input):
            continue
        given = {name: numpy_helper.to_array(known[name]) for name in node.input if name}
        for name, value in zip(node.output, computed(node, given, made.opset_import), strict=True):
            known[name] = numpy_helper.from_array(np.array(value, order="C"), name)
            graph.initializer.append(known[name])
        graph.node.remove(node)
    spare(graph)


def untie(graph: Any) -> None:
    """Gives products weights of their own, turned: to quantise turns them in place, where words may be read, too."""
    known = {weight.name: weight for weight in graph.initializer}
    for node in graph.node:
        way = next((one for one in node.attribute if one.name == "transB" and one.i), None)
        if node.op_type != "Gemm" or way is None or node.input[1] not in known:
            continue
        name = f"{node.input[1]}.turned"
        if name not in known:
            turned = np.ascontiguousarray(numpy_helper.to_array(known[node.input[1]]).T)
            known[name] = numpy_helper.from_array(turned, name)
            graph.initializer.append(known[name])
        node.input[1], way.i = name, 0
    spare(graph)


def computed(node: Any, given: dict[str, np.ndarray[Any, Any]], opsets: Any) -> list[np.ndarray[Any, Any]]:
    """The outputs of one node."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    alone = helper.make_model(helper.make_graph([node], "node", inputs, outputs), opset_imports=opsets)
    return list(ReferenceEvaluator(alone).run(None, given))


def spare(graph: Any) -> None:
    """Removes the weights that nothing reads."""
    read = {name for node in graph.node for name in node.input} | {each.name for each in graph.output}
    for weight in [weight for weight in graph.initializer if weight.name not in read]:
        graph.initializer.remove(weight)


PRODUCTS = ("Gemm", "MatMul", "MatMulInteger")
ROUNDED = "DynamicQuantizeLinear"
INPUT = "among."  # what the names of these inputs begin with


class Rows(NamedTuple):
    """Weights of an output layer, and which of their dimensions has a place for each word."""

    weights: np.ndarray[Any, Any]
    words: int

    def of(self, words: Sequence[int]) -> np.ndarray[Any, Any]:
        """Those of some words."""
        return np.ascontiguousarray(self.weights.take(words, self.words))


def opened(path: Path) -> tuple[bytes, dict[str, Rows]]:
    """The graph, and by the names of its further inputs what it was written with."""
    made = onnx.load(path)
    graph = made.graph
    fold(made)
    known = {weight.name: weight for weight in graph.initializer}
    found = {}
    *after, product = last(graph)
    if product.op_type not in PRODUCTS or product.input[1] not in known:
        raise UserError(f"{path} was written before a shortlist could be had with it: export it again")
    for node, place, words in list(layer(product, after, known)):
        weight = known[node.input[place]]
        node.input[place] = name = INPUT + weight.name
        if name not in found:
            found[name] = Rows(numpy_helper.to_array(weight), words)
            sizes = ["words" if dimension == words else size for dimension, size in enumerate(weight.dims)]
            graph.input.append(helper.make_tensor_value_info(name, weight.data_type, sizes))
    spare(graph)
    graph.output[0].type.tensor_type.shape.dim[1].dim_param = "words"
    return made.SerializeToString(), found


def layer(product: Any, after: Sequence[Any], known: dict[str, Any]) -> Iterator[tuple[Any, int, int]]:
    """Where the output layer's weights go in: a node, the place among its inputs, and their dimension of the words.

    They are what has a number for each word in the last product and what comes after it.
    """
    words = 0 if any(one.name == "transB" and one.i for one in product.attribute) else 1
    size = known[product.input[1]].dims[words]
    yield product, 1, words
    for node in (product, *after):
        for place, name in enumerate(node.input):
            if name in known and list(known[name].dims) == [size]:
                yield node, place, 0


def last(graph: Any) -> list[Any]:
    """The nodes from the log-probabilities back to the last product, which is the last of them."""
    makers = {name: node for node in graph.node for name in node.output}
    found: dict[str, Any] = {}
    waiting = [graph.output[0].name]
    while waiting:
        node = makers.get(waiting.pop())
        if node is not None and node.op_type != ROUNDED and node.output[0] not in found:
            found[node.output[0]] = node
            waiting.extend(() if node.op_type in PRODUCTS else node.input)
    return sorted(found.values(), key=lambda node: node.op_type in PRODUCTS)
