"""A model's weights as steps on the device take them: in the precision that is counted in, at addresses that stay."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Copies:
    """Copies of weights, which are made anew, in the same places, before each search.

    Whether weights have changed since the last one cannot be asked: fused optimizers write to them and say nothing.
    """

    def __init__(self, kind: torch.dtype) -> None:
        self.kind = kind
        self.made: list[tuple[Tensor, Callable[[], Tensor]]] = []

    def of(self, weight: Tensor) -> Tensor:
        """A weight in this precision; one that has it already is no copy."""
        if weight.dtype == self.kind:
            return weight.detach()
        return self.keep(lambda: weight)

    def keep(self, make: Callable[[], Tensor], kind: torch.dtype | None = None) -> Tensor:
        """What is made of weights, in this precision or another."""
        place = make().detach().to(kind or self.kind).contiguous()
        self.made.append((place, make))
        return place

    def renew(self) -> None:
        """All copies, from the weights as they are."""
        for place, make in self.made:
            place.copy_(make())
