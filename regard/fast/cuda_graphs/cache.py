"""CUDA graph caches: which keys get a graph, how many there are, and what follows a failed capture.

`GraphedFunctionCache` is for functions with gradients, `LossGraphCache` for losses, `GraphReplayer` for work without
gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Generic, TypeVar
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
from regard.fast.cuda_graphs.pool import GraphMemoryPool, StaticBuffers, run_on_side_stream, try_capture

G = TypeVar("G")
MIN_CALLS = 3  # calls with a key before it is captured
MAX_GRAPHS = 64  # per function
MAX_LOSS_GRAPHS = 256  # per model
MAX_KEYS = 10_000  # keys whose calls are counted
GRAPH_CACHES: WeakKeyDictionary[nn.Module, GraphedFunctionCache] = WeakKeyDictionary()


def get_graph_cache(module: nn.Module) -> GraphedFunctionCache:
    """Return the cache of a module, which is freed with it."""
    return GRAPH_CACHES.setdefault(module, GraphedFunctionCache())


class GraphCache(Generic[G]):
    """CUDA graphs by key: a key that has come often enough is captured.

    All graphs of a pool share its memory, so that the largest graph decides how much they need, not their number. In a
    full cache a key replaces the least frequent one when it has come more than twice as often. After a failure that
    `try_capture` cannot repair, the pool is disabled.
    """

    def __init__(
        self, purpose: str, pool: GraphMemoryPool, min_calls: int = MIN_CALLS, max_graphs: int = MAX_GRAPHS
    ) -> None:
        """`purpose` is what the log message names if graphs cannot be captured."""
        self.purpose, self.pool, self.min_calls, self.max_graphs = purpose, pool, min_calls, max_graphs
        self.num_calls: Counter[Hashable] = Counter()
        self.graphs: dict[Hashable, G] = {}

    def find(self, key: Hashable, make: Callable[[], G]) -> G | None:
        """Return the graph of a key, which `make` captures now if it is due, or None."""
        if self.is_due(key):
            self.capture(key, make)
        return self.graphs.get(key)

    def is_due(self, key: Hashable) -> bool:
        """Count a call, and return whether the key is to be captured now."""
        if len(self.num_calls) >= MAX_KEYS:
            self.num_calls = Counter({name: self.num_calls[name] for name in self.graphs})
        self.num_calls[key] += 1
        if key in self.graphs or not self.pool.is_enabled or self.num_calls[key] < self.min_calls:
            return False
        if len(self.graphs) >= self.max_graphs:
            rarest = min(self.graphs, key=self.num_calls.__getitem__)
            if self.num_calls[key] <= 2 * self.num_calls[rarest]:
                return False
            del self.graphs[rarest]
        return True

    def capture(self, key: Hashable, make: Callable[[], G]) -> None:
        """Add the graph of a key; after a failure all graphs of this cache are freed and the pool is disabled."""
        graph = try_capture(self.purpose, make, self.clear)
        self.pool.is_enabled = graph is not None
        if graph is not None:
            self.graphs[key] = graph

    def clear(self) -> None:
        """Free all graphs and their memory."""
        self.graphs.clear()


class GraphedFunctionCache(GraphCache[ForwardBackwardGraph]):
    """Calls a function of tensors on a GPU; shapes that recur are captured as graphs and replayed."""

    def __init__(
        self,
        min_calls: int = MIN_CALLS,
        max_graphs: int = MAX_GRAPHS,
        graph_type: type[ForwardBackwardGraph] = ForwardBackwardGraph,
    ) -> None:
        self.buffers, self.graph_type = StaticBuffers(), graph_type
        self.last_pass = 0  # index of the pass that last wrote the shared memory
        super().__init__("training", self.buffers.pool, min_calls, max_graphs)

    def __call__(
        self, function: TensorFunction, key: Hashable, spec: ShapeSpec, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return the outputs of the function; `key` stands for all that they depend on besides the tensors."""
        learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if not learns or not self.pool.is_enabled:
            return function(*tensors)
        shapes = tuple(
            tuple(round_up(size) if dim in DYNAMIC_DIMS else size for dim, size in zip(dims, tensor.shape, strict=True))
            for dims, tensor in zip(spec.inputs, tensors, strict=True)
        )
        kinds = tuple((tensor.dtype, tensor.device, tensor.requires_grad) for tensor in tensors)

        def make() -> ForwardBackwardGraph:
            self.last_pass += 1  # the capture overwrites the shared memory
            with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]
                return self.graph_type(function, shapes, tensors, self.buffers).record(function, self.buffers)

        graph = self.find((key, shapes, kinds, autocast_key(tensors)), make)
        if graph is None:
            return function(*tensors)
        outputs: tuple[Tensor, ...] = GraphReplay.apply(self, graph, function, spec, *tensors)  # type: ignore[no-untyped-call]
        return outputs

    def clear(self) -> None:
        """Free all graphs and their memory."""
        super().clear()
        self.buffers.clear()


class LossGraphCache(GraphCache[LossGraph]):
    """CUDA graphs of the loss of one model, by the shapes of its inputs and everything else that it depends on."""

    def __init__(self) -> None:
        self.gradients: Tensor | None = None  # all graphs write them to the same memory
        super().__init__("training", GraphMemoryPool(), max_graphs=MAX_LOSS_GRAPHS)

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

        def make() -> LossGraph:
            if self.gradients is None:
                self.gradients = torch.cat([torch.zeros_like(weight).flatten() for weight in model.parameters()])
            return LossGraph(model, compute, inputs, shapes, self.gradients).record(self.pool)

        graph = self.find(key, make)
        return None if graph is None else PrecomputedGradients.apply(graph.replay(inputs), *weights)  # type: ignore[no-untyped-call]

    def clear(self) -> None:
        """Free all graphs and their memory."""
        super().clear()
        self.gradients = None


class GraphReplayer(GraphCache[Callable[[], None]]):
    """Runs work by key: the second call is captured, and later calls replay the graph."""

    def __init__(self, pool: GraphMemoryPool, max_graphs: int) -> None:
        super().__init__("decoding", pool, 2, max_graphs)

    def __call__(self, name: Hashable, work: Callable[[], None]) -> None:
        """Run the work of this key, which uses the same memory in each call."""
        if self.is_due(name):
            run_on_side_stream(work)
            self.capture(name, partial(self._capture_work, work))
        else:
            self.graphs.get(name, work)()

    def _capture_work(self, work: Callable[[], None]) -> Callable[[], None]:
        with self.pool.capture() as graph:
            work()
        return graph.replay
