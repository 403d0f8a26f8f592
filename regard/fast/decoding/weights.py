"""A model's weights as steps on the device take them: in the precision that is counted in, at addresses that stay."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Copies:
    """Copies of weights, which are made anew, in the same places, when the weights have changed."""

    def __init__(self, kind: torch.dtype) -> None:
        self.kind = kind
        self.made: list[tuple[Tensor, Callable[[], Tensor]]] = []

    def of(self, weight: Tensor) -> Tensor:
        """A weight in this precision; one that has it already is no copy."""
        if weight.dtype == self.kind:
            return weight.detach()
        return self.keep(lambda: weight.to(self.kind))

    def keep(self, make: Callable[[], Tensor]) -> Tensor:
        """What is made of weights, in this precision."""
        place = make().detach().to(self.kind).contiguous()
        self.made.append((place, make))
        return place

    def renew(self) -> None:
        """All copies, from the weights as they are."""
        for place, make in self.made:
            place.copy_(make())


class Watch:
    """Whether weights are where, and what, they were."""

    def __init__(self, model: nn.Module) -> None:
        self.seen = stand(model)

    def moved(self, model: nn.Module) -> bool:
        """Whether others have taken their place."""
        return [place for place, _ in self.seen] != [weight.data_ptr() for weight in model.parameters()]

    def changed(self, model: nn.Module) -> bool:
        """Whether they have been written to since it was last asked."""
        before, self.seen = self.seen, stand(model)
        return before != self.seen


def stand(model: nn.Module) -> list[tuple[int, int]]:
    """Where each weight is, and how often it was written to."""
    return [(weight.data_ptr(), weight._version) for weight in model.parameters()]
