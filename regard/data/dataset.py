"""Encoded pairs to train on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from regard.data.batch import Seq2SeqBatch, collate
from regard.data.indexed_dataset import Indices, RaggedArray
from regard.data.sampler import DatasetPart

Augmentation = Callable[
    [RaggedArray, RaggedArray, int], tuple[RaggedArray, RaggedArray]
]  # both sides and a seed -> both sides cut otherwise


class ParallelDataset:
    """Two sides with as many sentences each, in one part or several."""

    def __init__(
        self,
        source: RaggedArray,
        target: RaggedArray,
        links: RaggedArray | None = None,
        parts: Sequence[DatasetPart] = (),
        augment: Augmentation | None = None,
        fingerprint: str | None = None,
    ) -> None:
        """`links` are those of each pair's tokens, source and target in turn; `fingerprint` saves reading it all."""
        self.source = source
        self.target = target
        self.links = links
        self.parts = parts
        self.augment = augment
        self.fingerprint = fingerprint or compute_dataset_fingerprint(source, target, *([links] if links else []))
        self.sizes = _compute_sizes(source, target)
        self.release_memory()

    def __len__(self) -> int:
        return len(self.source)

    def make_batch(self, rows: Indices, seed: int = 0) -> Seq2SeqBatch:
        """The pairs at `rows`; with noise, as the seed has it."""
        if self.augment is None:
            return collate(self.source, self.target, rows, self.links)
        source, target = (RaggedArray.from_rows(side[int(row)] for row in rows) for side in (self.source, self.target))
        return collate(*self.augment(source, target, seed), np.arange(len(rows)))

    def release_memory(self) -> None:
        """Lets go of what was read so far."""
        for part in (self.source, self.target, self.links):
            if part is not None:
                part.release_pages()


def _compute_sizes(source: RaggedArray, target: RaggedArray, chunk_size: int = 1 << 20) -> npt.NDArray[np.int32]:
    """What each pair takes in a batch: the longer side, with its EOS."""
    found = np.empty(len(source), dtype=np.int32)
    for start in range(0, len(source), chunk_size):
        rows = slice(start, start + chunk_size + 1)
        found[start : start + chunk_size] = np.maximum(np.diff(source.offsets[rows]), np.diff(target.offsets[rows])) + 1
    return found


def compute_dataset_fingerprint(*parts: RaggedArray) -> str:
    """Tells one set of examples from another."""
    found = hashlib.sha256()
    for part in parts:
        found.update(np.ascontiguousarray(part.values, dtype=np.int32).data)
        found.update(np.ascontiguousarray(part.offsets).data)
    return found.hexdigest()
