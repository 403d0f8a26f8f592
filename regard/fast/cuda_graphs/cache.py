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

from regard.fast.cuda_graphs.buckets import rounded
from regard.fast.cuda_graphs.function import FREE, Form, Graph, Played, Recording, Replayed, TensorFunction, precision
from regard.fast.cuda_graphs.pool import Places, Pool, Recorder, attempted

MIN_CALLS = 3  # a shape is recorded when it comes for this time
MAX_GRAPHS = 64  # graphs, of one function
CAPTURED: WeakKeyDictionary[nn.Module, Captured] = WeakKeyDictionary()


def graphs(module: nn.Module) -> Captured:
    """Those of a module, which go when it goes."""
    return CAPTURED.setdefault(module, Captured())


class Captured:
    """Calls a function of tensors on a GPU, and has a graph of it for each shape that comes again and again."""

    def __init__(self, patience: int = MIN_CALLS, most: int = MAX_GRAPHS, make: type[Graph] | None = None) -> None:
        self.patience, self.most, self.make = patience, most, make or Graph
        self.seen: Counter[Hashable] = Counter()
        self.graphs: dict[Hashable, Graph] = {}
        self.places = Places()
        self.turn = 0  # which forward pass the memory is left by
        self.able = True

    def __call__(
        self, function: TensorFunction, key: Hashable, form: Form, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """What the function gives; `key` stands for all that it depends on besides the tensors."""
        learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        graph = self.graph(function, key, form, tensors) if learns and self.able else None
        if graph is None:
            return function(*tensors)
        outputs: tuple[Tensor, ...] = Played.apply(self, graph, function, form, *tensors)  # type: ignore[no-untyped-call]
        return outputs

    def graph(self, function: TensorFunction, key: Hashable, form: Form, tensors: Sequence[Tensor]) -> Graph | None:
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
        self, known: Hashable, function: TensorFunction, shapes: Sequence[Sequence[int]], tensors: Sequence[Tensor]
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


MAX_LOSS_GRAPHS = 256  # recordings


class LossRecorder:
    """The recordings of one model, by what the shapes of their inputs, and all else they depend on, are called."""

    def __init__(self) -> None:
        self.able = True
        self.forget()

    def forget(self) -> None:
        """All recordings, and their memory."""
        self.seen: Counter[Hashable] = Counter()
        self.recordings: dict[Hashable, Recording] = {}
        self.gradients: Tensor | None = None
        self.pool = Pool()

    def loss(
        self,
        name: Hashable,
        model: nn.Module,
        weights: Sequence[Tensor],
        compute: Callable[[Sequence[Tensor]], Tensor],
        given: Sequence[Tensor],
        shapes: Sequence[tuple[int, ...]],
    ) -> Tensor | None:
        """The loss by a recording, which is made where the shapes have come often enough; None where there is none.

        The weights are all of the model's, in its order, and where they were the last time. The device begins before it
        is told of them: there are hundreds.
        """
        self.seen[name] += 1
        room = self.able and len(self.recordings) < MAX_LOSS_GRAPHS
        if name not in self.recordings and room and self.seen[name] >= MIN_CALLS:
            self.record(name, model, partial(Recording, model, compute, given, shapes))
        recording = self.recordings.get(name)
        return None if recording is None else Replayed.apply(recording.replay(given), *weights)  # type: ignore[no-untyped-call]

    def record(self, name: Hashable, model: nn.Module, recording: Callable[[Tensor], Recording]) -> None:
        """All recordings share their memory: no two run at a time, and what they give is copied at once."""

        def make() -> Recording:
            if self.gradients is None:
                self.gradients = torch.cat([torch.zeros_like(weight).flatten() for weight in model.parameters()])
            return recording(self.gradients)

        made = attempted("training", make, self.forget)
        recorded = made and attempted("training", partial(made.record, self.pool), self.forget)
        self.able = recorded is not None
        if recorded is not None:
            self.recordings[name] = recorded


class Player:
    """Does work by name: a recording of it is made the second time, and played back from the third on."""

    def __init__(self, recorder: Recorder, on_card: bool, most: int) -> None:
        self.recorder, self.on_card, self.most = recorder, on_card, most
        self.visits: Counter[Hashable] = Counter()
        self.replays: dict[Hashable, Callable[[], None]] = {}

    def __call__(self, name: Hashable, work: Callable[[], None]) -> None:
        """The work that this name stands for, over the same memory each time."""
        self.visits[name] += 1
        if name in self.replays:
            self.replays[name]()
        elif self.on_card and self.visits[name] == 2 and len(self.replays) < self.most:
            replay = self.recorder.record(work)
            if replay is not None:
                self.replays[name] = replay
        else:
            work()
