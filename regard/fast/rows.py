"""A step's graph whose output layer comes in with each run, so that it may have the rows of some words alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

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
    known = {weight.name: weight for weight in graph.initializer}
    found = {}
    for node, place, words in list(layer(graph, known)):
        weight = known[node.input[place]]
        node.input[place] = name = INPUT + weight.name
        if name not in found:
            found[name] = Rows(numpy_helper.to_array(weight), words)
            sizes = ["words" if dimension == words else size for dimension, size in enumerate(weight.dims)]
            graph.input.append(helper.make_tensor_value_info(name, weight.data_type, sizes))
    left = {name for node in graph.node for name in node.input}
    for weight in known.values():
        if weight.name not in left:
            graph.initializer.remove(weight)
    graph.output[0].type.tensor_type.shape.dim[1].dim_param = "words"
    return made.SerializeToString(), found


def layer(graph: Any, known: dict[str, Any]) -> Iterator[tuple[Any, int, int]]:
    """Where the output layer's weights go in: a node, the place among its inputs, and their dimension of the words.

    They are what has a number for each word on the way from the last product to the log-probabilities.
    """
    makers = {name: node for node in graph.node for name in node.output}
    way, waiting, seen = [], [graph.output[0].name], set()
    while waiting:
        node = makers.get(waiting.pop())
        if node is None or node.op_type == ROUNDED or id(node) in seen:
            continue
        seen.add(id(node))
        way.append(node)
        if node.op_type not in PRODUCTS:
            waiting.extend(node.input)
    size = 0
    for node in way:
        if node.op_type in PRODUCTS:
            matrix = known[node.input[1]]
            words = 0 if any(one.name == "transB" and one.i for one in node.attribute) else 1
            size = matrix.dims[words]
            yield node, 1, words
    for node in way:
        for place, name in enumerate(node.input):
            if name in known and list(known[name].dims) == [size]:
                yield node, place, 0
