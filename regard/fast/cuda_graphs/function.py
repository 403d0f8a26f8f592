"""Functions and losses as CUDA graphs: forward and backward pass as one launch each.

A graph reads and writes fixed addresses and has fixed shapes. Inputs are copied to static buffers, outputs and
gradients are copied out. Shapes are rounded up: an input is the leading slice of a larger buffer, with zeros around
it. The function must be such that padding does not change the leading slice of its outputs, and it must not draw
random numbers: those are inputs.

All graphs of one cache share their memory, so activations last from a forward pass until the next forward pass of the
same cache. A backward pass that comes later recomputes them from the inputs, without a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.fast.cuda_graphs.pool import Places, Pool, aside

if TYPE_CHECKING:
    from regard.fast.cuda_graphs.cache import Captured

TensorFunction = Callable[..., tuple[Tensor, ...]]
FREE = "BTS"  # the dimensions that are rounded up


class Form(NamedTuple):
    """A letter for each dimension of each input and output: B, T and S change from call to call, any other stays."""

    inputs: Sequence[str]
    outputs: Sequence[str]

    def sizes(self, tensors: Sequence[Tensor]) -> dict[str, int]:
        """What B, T and S are, of these inputs."""
        named = zip("".join(self.inputs), (size for tensor in tensors for size in tensor.shape), strict=True)
        return {letter: size for letter, size in named if letter in FREE}


class Graph:
    """A function's forward and backward pass for one shape, tried, and then recorded."""

    def __init__(
        self, function: TensorFunction, shapes: Sequence[Sequence[int]], tensors: Sequence[Tensor], places: Places
    ) -> None:
        self.inputs = [
            places.take(("input", number), shape, tensor).requires_grad_(tensor.requires_grad)
            for number, (shape, tensor) in enumerate(zip(shapes, tensors, strict=True))
        ]
        fill(self.inputs, tensors)
        outputs, slopes = self.tried(function)
        self.outputs = places.like("output", outputs)
        self.came = places.like("came", [one if one.requires_grad else None for one in outputs])
        self.slopes = places.like("slope", slopes)

    def record(self, function: TensorFunction, places: Places) -> Graph:
        """Both passes, each as a graph."""
        torch.clear_autocast_cache()  # what was cast before would be missing in the graph …
        try:
            with places.pool.recording() as forwards:
                found = function(*self.inputs)
                keep(self.outputs, found)
            with places.pool.recording() as backwards:
                keep(self.slopes, differentiated(found, self.inputs, self.came))
        finally:
            torch.clear_autocast_cache()  # … and what was cast within has no numbers outside
        self.forward: Callable[[], None] = forwards.replay
        self.backward: Callable[[], None] = backwards.replay
        return self

    def tried(self, function: TensorFunction) -> tuple[tuple[Tensor, ...], list[Tensor | None]]:
        """Both passes once beforehand, which also shows the shapes."""

        def passes() -> tuple[tuple[Tensor, ...], list[Tensor | None]]:
            outputs = function(*self.inputs)
            came = [torch.zeros_like(one) if one.requires_grad else None for one in outputs]
            return outputs, differentiated(outputs, self.inputs, came)

        found = aside(passes)
        torch.cuda.synchronize()
        return found


class Played(torch.autograd.Function):
    """A graph at work on tensors of the caller's; what it gives are copies, which nothing overwrites."""

    @staticmethod
    def forward(
        ctx: Any, captured: Captured, graph: Graph, function: TensorFunction, form: Form, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Plays the forward pass."""
        captured.turn += 1
        ctx.captured, ctx.graph, ctx.function, ctx.turn = captured, graph, function, captured.turn
        ctx.precision = precision(tensors)
        ctx.save_for_backward(*tensors)
        fill(graph.inputs, tensors)
        graph.forward()
        sizes = form.sizes(tensors)
        outputs = []
        for letters, place in zip(form.outputs, graph.outputs, strict=True):
            assert place is not None
            shape = [sizes.get(letter, size) for letter, size in zip(letters, place.shape, strict=True)]
            outputs.append(corner(place, shape).clone(memory_format=torch.contiguous_format))
        flat = [one for one, came in zip(outputs, graph.came, strict=True) if came is None]
        ctx.mark_non_differentiable(*flat)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *came: Tensor) -> tuple[Tensor | None, ...]:
        """Plays the backward pass, if the memory is still as the forward pass has left it."""
        tensors, captured, graph = ctx.saved_tensors, ctx.captured, ctx.graph
        if ctx.turn != captured.turn:
            return None, None, None, None, *again(ctx.function, tensors, came, ctx.precision)
        captured.turn += 1
        fill(graph.came, came)
        graph.backward()
        slopes = [
            None if place is None else corner(place, tensor.shape).clone(memory_format=torch.contiguous_format)
            for place, tensor in zip(graph.slopes, tensors, strict=True)
        ]
        return None, None, None, None, *slopes


def again(
    function: TensorFunction, tensors: Sequence[Tensor], came: Sequence[Tensor], how: tuple[str, bool, torch.dtype]
) -> list[Tensor | None]:
    """The gradients of the inputs, both passes computed once more."""
    inputs = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
    kind, enabled, dtype = how
    with torch.enable_grad(), torch.autocast(kind, enabled=enabled, dtype=dtype):
        outputs = function(*inputs)
    return differentiated(outputs, inputs, came)


def differentiated(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], came: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """A gradient for each input that wants one and has one, from those that came to the outputs."""
    ends = [(one, slope) for one, slope in zip(outputs, came, strict=True) if one.requires_grad]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    found = torch.autograd.grad([one for one, _ in ends], wanted, [slope for _, slope in ends], allow_unused=True)
    slopes = iter(found)
    return [next(slopes) if tensor.requires_grad else None for tensor in inputs]


@torch.no_grad()
def fill(places: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> None:
    """Copies tensors to the corners of their places, zeros around them."""
    for place, tensor in zip(places, tensors, strict=True):
        if place is not None:
            if place.shape != tensor.shape:
                place.zero_()
            corner(place, tensor.shape).copy_(tensor)


@torch.no_grad()
def keep(places: Sequence[Tensor | None], tensors: Sequence[Tensor | None]) -> None:
    """Copies tensors to their places; the memory that they have can then be another's."""
    for place, tensor in zip(places, tensors, strict=True):
        if place is not None and tensor is not None:
            place.copy_(tensor)


def corner(place: Tensor, shape: Sequence[int]) -> Tensor:
    """The first so many in every dimension."""
    for dimension, size in enumerate(shape):
        place = place.narrow(dimension, 0, size)
    return place


def precision(tensors: Sequence[Tensor]) -> tuple[str, bool, torch.dtype]:
    """The kind of device, whether autocast is on there, and what it casts to."""
    kind = tensors[0].device.type
    return kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


class Recording:
    """One graph: it reads its inputs where they were when it was made, and leaves loss and gradients where it did."""

    def __init__(
        self,
        model: nn.Module,
        compute: Callable[[Sequence[Tensor]], Tensor],
        given: Sequence[Tensor],
        shapes: Sequence[tuple[int, ...]],
        gradients: Tensor,
    ) -> None:
        """`gradients` is where those of all weights go, end to end; other recordings may write there, too."""
        weights = list(model.parameters())
        self.inputs = [one.new_empty(shape) for one, shape in zip(given, shapes, strict=True)]
        self.take(given)
        self.gradients = gradients
        self.loss = torch.empty((), device=gradients.device)
        parts = split(self.gradients, weights)

        def run() -> None:
            with torch.enable_grad(), aliased(model) as leaves:
                loss = compute(self.inputs)
                found = torch.autograd.grad(loss, leaves, allow_unused=True)
            for part, slope in zip(parts, found, strict=True):
                if slope is None:
                    part.zero_()
            torch._foreach_copy_(
                [part for part, slope in zip(parts, found, strict=True) if slope is not None],
                [slope for slope in found if slope is not None],
            )
            self.loss.copy_(loss.detach())

        self.run = run
        aside(run)  # what is made once, as compiled kernels, must be there before

    def record(self, pool: Pool) -> Recording:
        """Makes the graph."""
        with pool.recording() as self.graph:
            self.run()
        return self

    def take(self, given: Sequence[Tensor]) -> None:
        """What is given, in the first places of the inputs; in all others stand zeros."""
        torch._foreach_zero_(self.inputs)
        for place, one in zip(self.inputs, given, strict=True):
            place[tuple(map(slice, one.shape))].copy_(one)

    def replay(self, given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The loss and the gradients, end to end; both are the caller's own."""
        self.take(given)
        self.graph.replay()
        return self.loss.clone(), self.gradients.clone()


@contextmanager
def aliased(model: nn.Module) -> Iterator[list[Tensor]]:
    """The model with its weights as leaves of a graph of their own: another may be waiting for its way back.

    Gives them in the order of `model.parameters()`.
    """
    own = {id(weight): weight.detach().requires_grad_() for weight in model.parameters()}
    kept: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (module._parameters, dict(module._parameters)) for module in model.modules()
    ]
    try:
        for held, weights in kept:
            held.update({name: own[id(weight)] for name, weight in weights.items() if weight is not None})
        yield list(own.values())
    finally:
        for held, weights in kept:
            held.update(weights)


class Replayed(Function):
    """A loss whose gradients are known already."""

    @staticmethod
    def forward(ctx: Any, known: tuple[Tensor, Tensor], *weights: Tensor) -> Tensor:
        """A scalar."""
        loss, ctx.gradients = known
        ctx.weights = weights
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        """As much of them as is asked for."""
        return None, *split(ctx.gradients * by, ctx.weights)


def split(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Tensors that were laid end to end, in one call: there are hundreds, and as many updates wait for it."""
    return list(torch._utils._unflatten_dense_tensors(flat, like))  # type: ignore[no-untyped-call]
