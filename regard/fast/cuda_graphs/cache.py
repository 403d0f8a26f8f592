"""CUDA graphs of functions and losses, forward and backward pass as one launch each, and their caches.

A graph reads and writes fixed addresses and has fixed shapes. Inputs are copied to static buffers, outputs and
gradients are copied out. Shapes are rounded up: an input is the leading slice of a larger buffer, with zeros around
it. The function must be such that padding does not change the leading slice of its outputs, and it must not draw
random numbers: those are inputs.

All graphs of one cache share their memory, so activations last from a forward pass until the next forward pass of the
same cache. A backward pass that comes later recomputes them from the inputs, without a graph.

`GraphedFunctionCache` is for functions with gradients, `LossGraphCache` for losses, `GraphReplayer` for work without
gradients. They decide which keys get a graph, how many there are, and what follows a failed capture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.fast.cuda_graphs.buckets import copy_padded, leading_slice, round_up
from regard.fast.cuda_graphs.pool import GraphMemoryPool, StaticBuffers, run_on_side_stream, try_capture

G = TypeVar("G")
MIN_CALLS = 3  # calls with a key before it is captured
MAX_GRAPHS = 64  # per function
MAX_LOSS_GRAPHS = 256  # per model
MAX_KEYS = 10_000  # keys whose calls are counted
TensorFunction = Callable[..., tuple[Tensor, ...]]
DYNAMIC_DIMS = "BTS"  # dimensions that are rounded up
GRAPH_CACHES: WeakKeyDictionary[nn.Module, GraphedFunctionCache] = WeakKeyDictionary()


class ShapeSpec(NamedTuple):
    """One letter per dimension of each input and output: B, T and S vary between calls, others are fixed."""

    inputs: Sequence[str]
    outputs: Sequence[str]

    def sizes(self, tensors: Sequence[Tensor]) -> dict[str, int]:
        """Return the values of B, T and S in these inputs."""
        named = zip("".join(self.inputs), (size for tensor in tensors for size in tensor.shape), strict=True)
        return {letter: size for letter, size in named if letter in DYNAMIC_DIMS}


class ForwardBackwardGraph:
    """Forward and backward pass of a function for one bucket of shapes; runs once before it is captured."""

    def __init__(
        self,
        function: TensorFunction,
        shapes: Sequence[Sequence[int]],
        tensors: Sequence[Tensor],
        buffers: StaticBuffers,
    ) -> None:
        self.inputs = [
            buffers.allocate(("input", number), shape, tensor).requires_grad_(tensor.requires_grad)
            for number, (shape, tensor) in enumerate(zip(shapes, tensors, strict=True))
        ]
        copy_padded(self.inputs, tensors)
        outputs, input_grads = self.run_once(function)
        self.outputs = buffers.allocate_like("output", outputs)
        self.output_grads = buffers.allocate_like(
            "output_grad", [output if output.requires_grad else None for output in outputs]
        )
        self.input_grads = buffers.allocate_like("input_grad", input_grads)

    def record(self, function: TensorFunction, buffers: StaticBuffers) -> ForwardBackwardGraph:
        """Capture both passes, each as one graph."""
        torch.clear_autocast_cache()  # the graph must contain the casts …
        try:
            with buffers.pool.capture() as forward_graph:
                outputs = function(*self.inputs)
                copy_padded(self.outputs, outputs)
            with buffers.pool.capture() as backward_graph:
                copy_padded(self.input_grads, compute_gradients(outputs, self.inputs, self.output_grads))
        finally:
            torch.clear_autocast_cache()  # … and their results are not valid outside of it
        self.forward: Callable[[], None] = forward_graph.replay
        self.backward: Callable[[], None] = backward_graph.replay
        return self

    def run_once(self, function: TensorFunction) -> tuple[tuple[Tensor, ...], list[Tensor | None]]:
        """Run both passes, to compile kernels and find the shapes of outputs and gradients."""

        def passes() -> tuple[tuple[Tensor, ...], list[Tensor | None]]:
            outputs = function(*self.inputs)
            output_grads = [torch.zeros_like(output) if output.requires_grad else None for output in outputs]
            return outputs, compute_gradients(outputs, self.inputs, output_grads)

        outputs = run_on_side_stream(passes)
        torch.cuda.synchronize()
        return outputs


class GraphReplay(Function):
    """Autograd function that replays a graph on the caller's tensors; its outputs are copies."""

    @staticmethod
    def forward(
        ctx: Any,
        cache: GraphedFunctionCache,
        graph: ForwardBackwardGraph,
        function: TensorFunction,
        spec: ShapeSpec,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        """Replay the forward pass."""
        cache.last_pass += 1
        ctx.cache, ctx.graph, ctx.function, ctx.last_pass = cache, graph, function, cache.last_pass
        ctx.autocast = autocast_key(tensors)
        ctx.save_for_backward(*tensors)
        copy_padded(graph.inputs, tensors)
        graph.forward()
        sizes = spec.sizes(tensors)
        outputs = [
            _copy_out(buffer, [sizes.get(dim, size) for dim, size in zip(dims, buffer.shape, strict=True)])
            for dims, buffer in zip(spec.outputs, graph.outputs, strict=True)
            if buffer is not None
        ]
        without_grad = [
            output for output, output_grads in zip(outputs, graph.output_grads, strict=True) if output_grads is None
        ]
        ctx.mark_non_differentiable(*without_grad)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *output_grads: Tensor) -> tuple[Tensor | None, ...]:
        """Replay the backward pass, or recompute both if another pass has overwritten the activations."""
        tensors, cache, graph = ctx.saved_tensors, ctx.cache, ctx.graph
        if ctx.last_pass != cache.last_pass:
            inputs = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
            kind, enabled, dtype = ctx.autocast
            with torch.enable_grad(), torch.autocast(kind, enabled=enabled, dtype=dtype):
                outputs = ctx.function(*inputs)
            return None, None, None, None, *compute_gradients(outputs, inputs, output_grads)
        cache.last_pass += 1
        copy_padded(graph.output_grads, output_grads)
        graph.backward()
        input_grads = [
            None if buffer is None else _copy_out(buffer, tensor.shape)
            for buffer, tensor in zip(graph.input_grads, tensors, strict=True)
        ]
        return None, None, None, None, *input_grads


def compute_gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], output_grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Return the gradient of each input that requires one, or None, given the gradients of the outputs."""
    differentiable = [
        (output, grad) for output, grad in zip(outputs, output_grads, strict=True) if output.requires_grad
    ]
    trained = [tensor for tensor in inputs if tensor.requires_grad]
    grads = torch.autograd.grad(
        [output for output, _ in differentiable], trained, [grad for _, grad in differentiable], allow_unused=True
    )
    remaining_grads = iter(grads)
    return [next(remaining_grads) if tensor.requires_grad else None for tensor in inputs]


def _copy_out(buffer: Tensor, shape: Sequence[int]) -> Tensor:
    return leading_slice(buffer, shape).clone(memory_format=torch.contiguous_format)


def autocast_key(tensors: Sequence[Tensor]) -> tuple[str, bool, torch.dtype]:
    """Return (device type, whether autocast is enabled, its dtype)."""
    kind = tensors[0].device.type
    return kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


class LossGraph:
    """Loss and gradients as one CUDA graph that reads weights at their addresses and inputs from static buffers."""

    def __init__(
        self,
        model: nn.Module,
        compute: Callable[[Sequence[Tensor]], Tensor],
        inputs: Sequence[Tensor],
        shapes: Sequence[tuple[int, ...]],
        gradients: Tensor,
    ) -> None:
        """`gradients` is the flat buffer for the gradients of all weights, shared by all graphs of a cache."""
        self.model, self.compute, self.gradients = model, compute, gradients
        self.inputs = [tensor.new_empty(shape) for tensor, shape in zip(inputs, shapes, strict=True)]
        copy_padded(self.inputs, inputs)
        self.loss = torch.empty((), device=gradients.device)
        self.buffers = _split_flat(gradients, list(model.parameters()))
        run_on_side_stream(self.run)  # kernels must be compiled before the capture

    def run(self) -> None:
        """Compute loss and gradients of the static inputs."""
        with torch.enable_grad(), use_detached_parameters(self.model) as leaves:
            loss = self.compute(self.inputs)
            grads = torch.autograd.grad(loss, leaves, materialize_grads=True)
        torch._foreach_copy_(self.buffers, grads)
        self.loss.copy_(loss.detach())

    def record(self, pool: GraphMemoryPool) -> LossGraph:
        """Capture the graph."""
        with pool.capture() as self.graph:
            self.run()
        return self

    def replay(self, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return copies of the loss and of the flat gradients."""
        copy_padded(self.inputs, inputs)
        self.graph.replay()
        return self.loss.clone(), self.gradients.clone()


@contextmanager
def use_detached_parameters(model: nn.Module) -> Iterator[list[Tensor]]:
    """Replace the parameters by detached leaves, so that a pending backward pass of the real ones is not affected.

    Yields them in the order of `model.parameters()`.
    """
    leaves = {id(weight): weight.detach().requires_grad_() for weight in model.parameters()}
    with swap_parameters(model, leaves):
        yield list(leaves.values())


@contextmanager
def swap_parameters(model: nn.Module, tensors: Mapping[int, Tensor]) -> Iterator[None]:
    """Replace the parameters with these ids by other tensors."""
    saved: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (module._parameters, dict(module._parameters)) for module in model.modules()
    ]
    try:
        for parameters, before in saved:
            parameters.update({name: tensors.get(id(weight), weight) for name, weight in before.items()})
        yield
    finally:
        for parameters, before in saved:
            parameters.update(before)


class PrecomputedGradients(Function):
    """Autograd function of a loss whose gradients are known already."""

    @staticmethod
    def forward(ctx: Any, results: tuple[Tensor, Tensor], *weights: Tensor) -> Tensor:
        """Return the loss."""
        loss, ctx.gradients = results
        ctx.weights = weights
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        """Return the known gradients, scaled."""
        return None, *_split_flat(ctx.gradients * scale, ctx.weights)


def _split_flat(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split a flat tensor in one call, because there are hundreds of weights in every update."""
    return list(torch._utils._unflatten_dense_tensors(flat, like))  # type: ignore[no-untyped-call]


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
        self, key: Hashable, weights: Sequence[Tensor], inputs: Sequence[Tensor], make: Callable[[Tensor], LossGraph]
    ) -> Tensor | None:
        """Return the loss by a graph, captured when the key has come often enough, or None without a graph.

        The replay starts before autograd gets the weights, which takes a while: there are hundreds.

        Args:
            key: shapes, and everything else that the loss depends on.
            weights: all parameters of the model, in its order and at the addresses of the last call.
            inputs: tensors of the batch.
            make: returns the graph, not yet captured, given the buffer for all gradients.
        """

        def record() -> LossGraph:
            if self.gradients is None:
                self.gradients = torch.cat([torch.zeros_like(weight).flatten() for weight in weights])
            return make(self.gradients).record(self.pool)

        graph = self.find(key, record)
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
