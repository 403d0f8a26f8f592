"""A loss and its gradients recorded as a CUDA graph, and replayed: the sums take the time then, not the calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.fast.recording import Pool, aside, attempted

OFTEN = 3  # times that a shape must have come: a recording costs about two runs, and is to pay off
MOST = 256  # recordings


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
        room = self.able and len(self.recordings) < MOST
        if name not in self.recordings and room and self.seen[name] >= OFTEN:
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
