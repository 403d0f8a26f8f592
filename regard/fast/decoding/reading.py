"""What the card has written, on its way to the host while the card goes on."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


class Reading:
    """A tensor as it was when `begin` was called, whatever is written to it after that."""

    def __init__(self, there: Tensor) -> None:
        self.there = there
        self.here = torch.empty(there.shape, dtype=there.dtype, pin_memory=there.is_cuda)
        self.came = torch.cuda.Event() if there.is_cuda else None  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Asks for it, behind all that the card was asked for before."""
        self.here.copy_(self.there, non_blocking=True)
        if self.came is not None:
            self.came.record()

    def end(self) -> npt.NDArray[Any]:
        """Waits until it is here; the next `begin` writes to the same place."""
        if self.came is not None:
            self.came.synchronize()
        return self.here.numpy()
