"""What was seen before, in a few bytes each."""

from __future__ import annotations

from array import array
from hashlib import blake2b


class Seen:
    """A set of texts that keeps 8 bytes of each one's hash, at most 16 with the room to grow.

    Python's own would take ten times as much. Of ten million texts one is taken for another with a chance of 3 in a
    million.
    """

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 << 10))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, *texts: str) -> bool:
        """Adds a text, or two as one; whether it is new."""
        return self.add_key(key(*texts))

    def add_key(self, wanted: int) -> bool:
        """Adds a text by its hash; whether it is new."""
        if 4 * self._count >= 3 * len(self._slots):
            self._grow()
        place = self._place(wanted)
        if self._slots[place]:
            return False
        self._slots[place] = wanted
        self._count += 1
        return True

    def _place(self, wanted: int) -> int:
        """The slot that holds a hash, or the free one where it belongs."""
        last = len(self._slots) - 1  # sizes are powers of two
        place = wanted & last
        while (found := self._slots[place]) and found != wanted:
            place = (place + 1) & last
        return place

    def _grow(self) -> None:
        """Twice as many slots."""
        before = self._slots
        self._slots = array("Q", bytes(16 * len(before)))
        for one in before:
            if one:
                self._slots[self._place(one)] = one


def key(*texts: str) -> int:
    """64 bits of a text, or of two, never 0; where the first of them ends counts."""
    joined = f"{len(texts[0])} {''.join(texts)}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(joined, digest_size=8).digest(), "big") or 1
