"""Where the keys and values of the words so far lie, so that a step writes its own and moves no others."""

from __future__ import annotations

from collections.abc import Sequence

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
        return self if self.used == size < self.keys.shape[4] else placed([(self, size)], size)

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


def placed(rooms: Sequence[tuple[Room, int]], last: int) -> Room:
    """The groups of some rooms in one, with free positions.

    Of each room the last of so many positions become the last of as many as are wanted, behind padding if need be.
    """
    more = max(CHUNK, last // 2)
    keys = laid([(room.keys, size) for room, size in rooms], 4, last, last + more)
    values = laid([(room.values, size) for room, size in rooms], 3, last, last + more)
    return Room(keys, values, last)


def laid(parts: Sequence[tuple[Tensor, int]], dim: int, last: int, whole: int) -> Tensor:
    """Tensors behind each other, of each the last of so many entries along `dim` in front of `last`."""
    shape, first = list(parts[0][0].shape), 0
    shape[1], shape[dim] = sum(part.shape[1] for part, _ in parts), whole
    out = parts[0][0].new_empty(shape)
    for part, size in parts:
        own, both = out.narrow(1, first, part.shape[1]), min(size, last)
        own.narrow(dim, 0, last - both).zero_()  # is read, though masked, and must be numbers
        own.narrow(dim, last - both, both).copy_(part.narrow(dim, size - both, both))
        first += part.shape[1]
    return out
