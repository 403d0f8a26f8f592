"""A model's weights as steps on the device take them: in the precision that is counted in, at addresses that stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


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

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.places, self.versions = standing(weights)

    def moved(self, weights: Sequence[Tensor]) -> bool:
        """Whether others have taken their place."""
        return self.places != [weight.data_ptr() for weight in weights]

    def changed(self, weights: Sequence[Tensor]) -> bool:
        """Whether they have been written to since it was last asked."""
        before, (_, self.versions) = self.versions, standing(weights)
        return before != self.versions


def standing(weights: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """Where each weight is, and how often it was written to."""
    return [weight.data_ptr() for weight in weights], [weight._version for weight in weights]
