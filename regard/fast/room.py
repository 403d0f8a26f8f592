"""Where the keys and values of the words so far lie, so that a step writes its own and moves no others."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 16  # positions that a room grows by, at the least


class Room:
    """A place for every position and, at each, a slot for every row of a group, which are hypotheses of one source.

    States share a room; whoever goes on from a state that is not the newest in it gets a copy.
    """

    def __init__(self, keys: Tensor, values: Tensor, used: int) -> None:
        self.keys = keys  # layers,groups,heads,d_k,positions,slots: products with few queries are fastest so
        self.values = values  # layers,groups,heads,positions,slots,d_k
        self.used = used  # positions that are written

    @property
    def groups(self) -> int:
        """How many there are."""
        return self.keys.shape[1]

    @property
    def slots(self) -> int:
        """Rows of a group."""
        return self.keys.shape[5]

    def after(self, size: int) -> Room:
        """With `size` positions and free ones behind them: this one, unless it is full, or written to by others."""
        if self.used == size < self.keys.shape[4]:
            return self
        return self.placed(size, size, max(CHUNK, size // 2))

    def placed(self, size: int, last: int, more: int = 0) -> Room:
        """The last of `size` positions as the last of so many, behind padding where they are fewer, and some more."""
        keys, values = (moved(both, dim, size, last, last + more) for both, dim in ((self.keys, 4), (self.values, 3)))
        return Room(keys, values, last)

    def write(self, layer: int, place: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Takes those of a step in, groups,heads,slots,d_k; all so far, groups,heads,d_k,n and groups,heads,n,d_k."""
        all_keys, all_values = self.keys[layer], self.values[layer]
        all_keys[:, :, :, place] = keys.transpose(2, 3)
        all_values[:, :, place] = values
        self.used = place + 1
        return all_keys[:, :, :, : self.used].flatten(3), all_values[:, :, : self.used].flatten(2, 3)

    def select(self, groups: Tensor) -> Room:
        """Some of the groups."""
        return Room(self.keys.index_select(1, groups), self.values.index_select(1, groups), self.used)

    def widen(self, width: int) -> Room:
        """Every row so many times, each in a slot of its own."""
        return Room(self.keys.repeat_interleave(width, 5), self.values.repeat_interleave(width, 4), self.used)

    def repeat(self, times: int) -> Room:
        """Every group so many times."""
        return Room(self.keys.repeat_interleave(times, 1), self.values.repeat_interleave(times, 1), self.used)

    def join(self, other: Room) -> Room:
        """The groups of both, which have equally many positions."""
        return Room(torch.cat((self.keys, other.keys), 1), torch.cat((self.values, other.values), 1), self.used)


def moved(x: Tensor, dim: int, size: int, last: int, whole: int) -> Tensor:
    """The last of `size` entries along a dimension so that they are the last of so many, in a whole with free ones."""
    shape, both = list(x.shape), min(size, last)
    shape[dim] = whole
    out = x.new_empty(shape)
    out.narrow(dim, 0, last - both).zero_()  # is read, and must be numbers
    out.narrow(dim, last - both, both).copy_(x.narrow(dim, size - both, both))
    return out
