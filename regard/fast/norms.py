"""Layer norms in a graph, as sums and products.

onnxruntime has one operation for them, which goes through a row number by number: the same in ten operations that take
several numbers at a time is faster. They are chosen so that it does not see the norm in them again, and put its own
operation in their place, as it does with a power and a quotient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

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
