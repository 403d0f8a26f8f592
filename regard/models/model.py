"""What training knows of a model."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class Model(nn.Module):
    """Something with a loss. A batch is handed to it field by field."""

    summed: Callable[..., Tensor]  # a batch -> what training minimises, summed up over it
    count: Callable[..., Tensor]  # a batch -> what that sum is divided by

    def units(self) -> list[nn.Module]:
        """The parts whose weights are needed one part after the other, so that they may lie apart until then."""
        return []
