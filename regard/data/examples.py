"""Encoded pairs to train on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from regard.data.batches import Batch, collate
from regard.data.order import Part
from regard.data.ragged import Indices, Ragged

Noise = Callable[[Ragged, Ragged, int], tuple[Ragged, Ragged]]  # both sides and a seed -> both sides cut otherwise


class Examples:
    """Two sides with as many sentences each, in one part or several."""

    def __init__(
        self,
        source: Ragged,
        target: Ragged,
        links: Ragged | None = None,
        parts: Sequence[Part] = (),
        noise: Noise | None = None,
        fingerprint: str | None = None,
    ) -> None:
        """`links` are those of each pair's tokens, source and target in turn; `fingerprint` saves reading it all."""
        self.source = source
        self.target = target
        self.links = links
        self.parts = parts
        self.noise = noise
        self.fingerprint = fingerprint or digest(source, target, *([links] if links else []))
        self.sizes = sizes(source, target)
        self.release()

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, rows: Indices, seed: int = 0) -> Batch:
        """The pairs at `rows`; with noise, as the seed has it."""
        if self.noise is None:
            return collate(self.source, self.target, rows, self.links)
        source, target = (Ragged.of(side[int(row)] for row in rows) for side in (self.source, self.target))
        return collate(*self.noise(source, target, seed), np.arange(len(rows)))

    def release(self) -> None:
        """Lets go of what was read so far."""
        for part in (self.source, self.target, self.links):
            if part is not None:
                part.release()


def sizes(source: Ragged, target: Ragged, at_once: int = 1 << 20) -> npt.NDArray[np.int32]:
    """What each pair takes in a batch: the longer side, with its EOS."""
    found = np.empty(len(source), dtype=np.int32)
    for start in range(0, len(source), at_once):
        rows = slice(start, start + at_once + 1)
        found[start : start + at_once] = np.maximum(np.diff(source.offsets[rows]), np.diff(target.offsets[rows])) + 1
    return found


def digest(*parts: Ragged) -> str:
    """Tells one set of examples from another."""
    found = hashlib.sha256()
    for part in parts:
        found.update(np.ascontiguousarray(part.numbers, dtype=np.int32).data)
        found.update(np.ascontiguousarray(part.offsets).data)
    return found.hexdigest()
