"""Functions of many small kernels, recorded as CUDA graphs and played back: one launch for all of them, not one each.

A graph reads and writes at fixed addresses and has fixed shapes. So inputs are copied to places of its own, and what it
gives is copied from there, forwards and backwards; and shapes are rounded up: an input lies in the corner of a larger
tensor, with zeros around it. The function must be such that what lies outside of the corner changes nothing within, and
must draw no random numbers: they are drawn outside, where a seed counts, and handed in.

All graphs of one `Captured` share their memory, so what a forward pass leaves for its backward pass lasts until the
next forward pass. Where that came first, the function is computed once more from its inputs, without a graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.fast.recording import Places, aside, attempted, rounded

Function = Callable[..., tuple[Tensor, ...]]
PATIENCE = 3  # a shape is recorded when it comes for this time
MOST = 64  # graphs, of one function
CAPTURED: WeakKeyDictionary[nn.Module, Captured] = WeakKeyDictionary()
FREE = "BTS"  # the dimensions that are rounded up


class Form(NamedTuple):
    """A letter for each dimension of each input and output: B, T and S change from call to call, any other stays."""

    inputs: Sequence[str]
    outputs: Sequence[str]

    def sizes(self, tensors: Sequence[Tensor]) -> dict[str, int]:
        """What B, T and S are, of these inputs."""
        named = zip("".join(self.inputs), (size for tensor in tensors for size in tensor.shape), strict=True)
        return {letter: size for letter, size in named if letter in FREE}


def graphs(module: nn.Module) -> Captured:
    """Those of a module, which go when it goes."""
    return CAPTURED.setdefault(module, Captured())


class Captured:
    """Calls a function of tensors on a GPU, and has a graph of it for each shape that comes again and again."""

    def __init__(self, patience: int = PATIENCE, most: int = MOST, make: type[Graph] | None = None) -> None:
        self.patience, self.most, self.make = patience, most, make or Graph
        self.seen: Counter[Hashable] = Counter()
        self.graphs: dict[Hashable, Graph] = {}
        self.places = Places()
        self.turn = 0  # which forward pass the memory is left by
        self.able = True

    def __call__(self, function: Function, key: Hashable, form: Form, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What the function gives; `key` stands for all that it depends on besides the tensors."""
        learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        graph = self.graph(function, key, form, tensors) if learns and self.able else None
        if graph is None:
            return function(*tensors)
        outputs: tuple[Tensor, ...] = Played.apply(self, graph, function, form, *tensors)  # type: ignore[no-untyped-call]
        return outputs

    def graph(self, function: Function, key: Hashable, form: Form, tensors: Sequence[Tensor]) -> Graph | None:
        """The one for these shapes; recorded now if they have come often enough, and None if not."""
        shapes = tuple(
            tuple(rounded(size) if letter in FREE else size for letter, size in zip(letters, tensor.shape, strict=True))
            for letters, tensor in zip(form.inputs, tensors, strict=True)
        )
        kinds = tuple((tensor.dtype, tensor.device, tensor.requires_grad) for tensor in tensors)
        known = (key, shapes, kinds, precision(tensors))
        if known not in self.graphs and len(self.graphs) < self.most:
            self.seen[known] += 1
            if self.seen[known] >= self.patience:
                self.record(known, function, shapes, tensors)
        return self.graphs.get(known)

    def record(
        self, known: Hashable, function: Function, shapes: Sequence[Sequence[int]], tensors: Sequence[Tensor]
    ) -> None:
        """Makes a graph; where that cannot be, there are none from now on."""
        self.turn += 1  # the memory is written to
        with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]
            made = attempted("training", partial(self.make, function, shapes, tensors, self.places), self.forget)
            graph = made and attempted("training", partial(made.record, function, self.places), self.forget)
        self.able = graph is not None
        if graph is not None:
            self.graphs[known] = graph

    def forget(self) -> None:
        """All graphs, and their memory."""
        self.graphs.clear()
        self.places.clear()


class Graph:
    """A function's forward and backward pass for one shape, tried, and then recorded."""

    def __init__(
        self, function: Function, shapes: Sequence[Sequence[int]], tensors: Sequence[Tensor], places: Places
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

    def record(self, function: Function, places: Places) -> Graph:
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

    def tried(self, function: Function) -> tuple[tuple[Tensor, ...], list[Tensor | None]]:
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
        ctx: Any, captured: Captured, graph: Graph, function: Function, form: Form, *tensors: Tensor
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
    function: Function, tensors: Sequence[Tensor], came: Sequence[Tensor], how: tuple[str, bool, torch.dtype]
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
