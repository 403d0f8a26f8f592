"""CUDA graph caches: which shapes get a graph, and how many.

`GraphedFunctionCache` for functions with gradients, `LossGraphCache` for losses, `GraphReplayer` for work without
gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regard.fast.cuda_graphs.buckets import round_up
from regard.fast.cuda_graphs.function import (
    DYNAMIC_DIMS,
    ForwardBackwardGraph,
    GraphReplay,
    LossGraph,
    PrecomputedGradients,
    ShapeSpec,
    TensorFunction,
    autocast_key,
)
from regard.fast.cuda_graphs.pool import GraphMemoryPool, GraphRecorder, StaticBuffers, try_capture

MIN_CALLS = 3  # calls with a shape before it is captured
MAX_GRAPHS = 64  # per function
GRAPH_CACHES: WeakKeyDictionary[nn.Module, GraphedFunctionCache] = WeakKeyDictionary()


def get_graph_cache(module: nn.Module) -> GraphedFunctionCache:
    """Return the cache of a module, which is freed with it."""
    return GRAPH_CACHES.setdefault(module, GraphedFunctionCache())


class GraphedFunctionCache:
    """Calls a function of tensors on a GPU; shapes that recur are captured as graphs and replayed."""

    def __init__(
        self,
        min_calls: int = MIN_CALLS,
        max_graphs: int = MAX_GRAPHS,
        graph_type: type[ForwardBackwardGraph] | None = None,
    ) -> None:
        self.min_calls, self.max_graphs, self.graph_type = min_calls, max_graphs, graph_type or ForwardBackwardGraph
        self.num_calls: Counter[Hashable] = Counter()
        self.graphs: dict[Hashable, ForwardBackwardGraph] = {}
        self.buffers = StaticBuffers()
        self.last_pass = 0  # index of the pass that last wrote the shared memory
        self.is_enabled = True

    def __call__(
        self, function: TensorFunction, key: Hashable, spec: ShapeSpec, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return the outputs of the function; `key` stands for all that they depend on besides the tensors."""
        learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        graph = self.graph(function, key, spec, tensors) if learns and self.is_enabled else None
        if graph is None:
            return function(*tensors)
        outputs: tuple[Tensor, ...] = GraphReplay.apply(self, graph, function, spec, *tensors)  # type: ignore[no-untyped-call]
        return outputs

    def graph(
        self, function: TensorFunction, key: Hashable, spec: ShapeSpec, tensors: Sequence[Tensor]
    ) -> ForwardBackwardGraph | None:
        """Return the graph for these shapes, captured now if they have come often enough, or None."""
        shapes = tuple(
            tuple(round_up(size) if dim in DYNAMIC_DIMS else size for dim, size in zip(dims, tensor.shape, strict=True))
            for dims, tensor in zip(spec.inputs, tensors, strict=True)
        )
        kinds = tuple((tensor.dtype, tensor.device, tensor.requires_grad) for tensor in tensors)
        graph_key = (key, shapes, kinds, autocast_key(tensors))
        if graph_key not in self.graphs and len(self.graphs) < self.max_graphs:
            self.num_calls[graph_key] += 1
            if self.num_calls[graph_key] >= self.min_calls:
                self.record(graph_key, function, shapes, tensors)
        return self.graphs.get(graph_key)

    def record(
        self, graph_key: Hashable, function: TensorFunction, shapes: Sequence[Sequence[int]], tensors: Sequence[Tensor]
    ) -> None:
        """Capture a graph; after a failure the cache is disabled."""
        self.last_pass += 1  # the capture overwrites it
        with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]
            made = try_capture(
                "training", partial(self.graph_type, function, shapes, tensors, self.buffers), self.clear
            )
            graph = made and try_capture("training", partial(made.record, function, self.buffers), self.clear)
        self.is_enabled = graph is not None
        if graph is not None:
            self.graphs[graph_key] = graph

    def clear(self) -> None:
        """Free all graphs and their memory."""
        self.graphs.clear()
        self.buffers.clear()


MAX_LOSS_GRAPHS = 256  # per model


class LossGraphCache:
    """CUDA graphs of the loss of one model, by the shapes of its inputs and everything else that it depends on."""

    def __init__(self) -> None:
        self.is_enabled = True
        self.clear()

    def clear(self) -> None:
        """Free all graphs and their memory."""
        self.num_calls: Counter[Hashable] = Counter()
        self.graphs: dict[Hashable, LossGraph] = {}
        self.gradients: Tensor | None = None
        self.pool = GraphMemoryPool()

    def compute_loss(
        self,
        key: Hashable,
        model: nn.Module,
        weights: Sequence[Tensor],
        compute: Callable[[Sequence[Tensor]], Tensor],
        inputs: Sequence[Tensor],
        shapes: Sequence[tuple[int, ...]],
    ) -> Tensor | None:
        """Return the loss by a graph, captured when the key has come often enough, or None without a graph.

        The replay starts before autograd is told of the weights, which takes a while: there are hundreds.

        Args:
            key: shapes, and everything else that the loss depends on.
            weights: all parameters of the model, in its order and at the addresses of the last call.
            compute: the loss of static inputs.
            inputs: tensors of the batch.
            shapes: shapes of the static inputs.
        """
        self.num_calls[key] += 1
        has_capacity = self.is_enabled and len(self.graphs) < MAX_LOSS_GRAPHS
        if key not in self.graphs and has_capacity and self.num_calls[key] >= MIN_CALLS:
            self.record(key, model, partial(LossGraph, model, compute, inputs, shapes))
        graph = self.graphs.get(key)
        return None if graph is None else PrecomputedGradients.apply(graph.replay(inputs), *weights)  # type: ignore[no-untyped-call]

    def record(self, key: Hashable, model: nn.Module, graph: Callable[[Tensor], LossGraph]) -> None:
        """Capture a graph; all graphs share memory, since no two run at the same time and results are copied."""

        def make() -> LossGraph:
            if self.gradients is None:
                self.gradients = torch.cat([torch.zeros_like(weight).flatten() for weight in model.parameters()])
            return graph(self.gradients)

        new_graph = try_capture("training", make, self.clear)
        captured = new_graph and try_capture("training", partial(new_graph.record, self.pool), self.clear)
        self.is_enabled = captured is not None
        if captured is not None:
            self.graphs[key] = captured


class GraphReplayer:
    """Runs work by key: the second call is captured, and later calls replay the graph."""

    def __init__(self, recorder: GraphRecorder, on_gpu: bool, max_graphs: int) -> None:
        self.recorder, self.on_gpu, self.max_graphs = recorder, on_gpu, max_graphs
        self.visits: Counter[Hashable] = Counter()
        self.replays: dict[Hashable, Callable[[], None]] = {}

    def __call__(self, name: Hashable, work: Callable[[], None]) -> None:
        """Run the work of this key, which uses the same memory in each call."""
        self.visits[name] += 1
        if name in self.replays:
            self.replays[name]()
        elif self.on_gpu and self.visits[name] == 2 and len(self.replays) < self.max_graphs:
            replay = self.recorder.record(work)
            if replay is not None:
                self.replays[name] = replay
        else:
            work()
