"""Encoded sentences, one behind the other in one array: small, and ready to be mapped from a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Sentences:
    """Ids of many sentences; `sentences[i]` is a view of the i-th."""

    def __init__(self, ids: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64]) -> None:
        self.ids = ids
        self.offsets = offsets  # one more than there are sentences

    @classmethod
    def of(cls, encoded: Iterable[Sequence[int]]) -> Sentences:
        """Packs lists of ids."""
        rows = list(encoded)
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        ids = np.fromiter((id for row in rows for id in row), dtype=np.int32, count=int(offsets[-1]))
        return cls(ids, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        row = range(len(self))[index]
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Ids in each sentence."""
        return np.diff(self.offsets)


class Examples(NamedTuple):
    """Two sides with as many sentences each."""

    source: Sentences
    target: Sentences
    links: Sequence[npt.NDArray[np.int32]] | None = None  # of each pair: rows of source token, target token

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """What each pair takes in a batch: the longer side, with its EOS."""
        return np.maximum(self.source.lengths, self.target.lengths) + 1
