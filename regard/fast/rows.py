"""A step's graph whose output layer comes in with each run, so that it may have the rows of some words alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from regard.errors import UserError
from regard.fast.folding import fold, spare

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
