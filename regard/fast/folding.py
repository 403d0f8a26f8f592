"""The weights of a graph as it should have them: computed once, not in each run, and each product's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

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
