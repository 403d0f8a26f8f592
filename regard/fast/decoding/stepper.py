"""What a search on the device asks of a decoder: to go one step on at fixed addresses."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from regard.fast.decoding.board import Board
from regard.fast.decoding.weights import Copies
from regard.fast.recording import Places
from regard.models.base import Decoder

# Does work that has a name, once for all: what reads and writes at fixed addresses may be recorded and played back.
Play = Callable[[Hashable, Callable[[], None]], None]


class Size(NamedTuple):
    """The shapes of a search."""

    sentences: int
    width: int  # rows of each
    source: int  # positions of the longest
    capacity: int  # positions of targets that are kept, by decoders that keep any

    @property
    def rows(self) -> int:
        """R."""
        return self.sentences * self.width


class Stepper(Protocol):
    """A decoder's states, and its step."""

    def begin(self, source: Tensor, lengths: Tensor, count: int, play: Play) -> None:
        """The states before the first token of sources B,S, of `count` words in all; there may be room for more."""
        ...

    def leave(self, kept: Tensor, taken: int) -> list[Tensor]:
        """Copies of the states, after so many steps, of the sentences with these numbers …"""
        ...

    def follow(self, left: list[Tensor]) -> None:
        """… from which another one goes on."""
        ...

    def step(self, board: Board, number: int) -> Tensor:
        """One step of all rows -> what the output layer reads, R,size."""
        ...


class Weights(Protocol):
    """A model as steps take it."""

    copies: Copies  # what must be made anew when weights have changed
    output: Tensor  # V,size; the output layer
    grows: bool  # whether what is kept grows with the target

    @property
    def decoder(self) -> Decoder:
        """The readable one."""
        ...

    def stepper(self, size: Size, places: Places) -> Stepper:
        """One with room for this."""
        ...


class States:
    """Takes places for the states of a decoder."""

    def __init__(self, places: Places, like: Tensor) -> None:
        self.places, self.like = places, like

    def __call__(self, role: str, kind: torch.dtype, *shape: int) -> Tensor:
        """One of this shape; what another stepper of the same model has in this role may lie there, too."""
        size = torch.Size(shape).numel()
        most = 1 << max(0, size - 1).bit_length()  # so that a little more does not need memory of its own
        return self.places.take(("state", role), (most,), self.like.new_empty(0, dtype=kind))[:size].view(shape)


def put(place: Tensor, tensor: Tensor) -> None:
    """Copies a tensor to the first of a place, in every dimension."""
    for dimension, size in enumerate(tensor.shape):
        place = place.narrow(dimension, 0, size)
    place.copy_(tensor)
