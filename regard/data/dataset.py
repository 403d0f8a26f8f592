"""Datasets for training: encoded sentence pairs, and the base class of examples that are all in memory."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.data.batch import Seq2SeqBatch, collate
from regard.data.indexed_dataset import Indices, RaggedArray
from regard.data.sampler import DatasetPart

# Source, target and a seed -> source and target, segmented differently (BPE dropout).
Augmentation = Callable[[RaggedArray, RaggedArray, int], tuple[RaggedArray, RaggedArray]]


class InMemoryDataset(ABC):
    """Encoded examples, all in memory; a derived class sets `sizes` and `fingerprint`."""

    parts: Sequence[DatasetPart] = ()
    sizes: npt.NDArray[np.int32]  # tokens of each example in a batch
    fingerprint: str  # identifies the content

    def __len__(self) -> int:
        return len(self.sizes)

    @abstractmethod
    def make_batch(self, rows: Indices, seed: int = 0) -> Any:
        """Return the examples at `rows`; `seed` determines random augmentation."""

    def release_memory(self) -> None:  # noqa: B027 - a default, not abstract
        """Do nothing: all data stay in memory."""


class ParallelDataset:
    """Source and target sentences as token ids; the pairs of one corpus after another form its parts."""

    def __init__(
        self,
        source: RaggedArray,
        target: RaggedArray,
        links: RaggedArray | None = None,
        parts: Sequence[DatasetPart] = (),
        augment: Augmentation | None = None,
        fingerprint: str | None = None,
    ) -> None:
        """Take both sides, with the alignment of each pair in `links` as source token, target token, and so on.

        A known `fingerprint` saves reading all ids to compute it.
        """
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
        """Return the pairs at `rows` as a batch; the seed determines the augmentation."""
        if self.augment is None:
            return collate(self.source, self.target, rows, self.links)
        source, target = (RaggedArray.from_rows(side[int(row)] for row in rows) for side in (self.source, self.target))
        return collate(*self.augment(source, target, seed), np.arange(len(rows)))

    def release_memory(self) -> None:
        """Release the memory-mapped pages that were read so far."""
        for part in (self.source, self.target, self.links):
            if part is not None:
                part.release_pages()


def _compute_sizes(source: RaggedArray, target: RaggedArray, chunk_size: int = 1 << 20) -> npt.NDArray[np.int32]:
    """Return the tokens that each pair takes in a batch: the length of the longer side with EOS."""
    sizes = np.empty(len(source), dtype=np.int32)
    for start in range(0, len(source), chunk_size):
        rows = slice(start, start + chunk_size + 1)
        sizes[start : start + chunk_size] = np.maximum(np.diff(source.offsets[rows]), np.diff(target.offsets[rows])) + 1
    return sizes


def compute_dataset_fingerprint(*parts: RaggedArray) -> str:
    """Return a SHA-256 that identifies the content of a dataset."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part.values, dtype=np.int32).data)
        digest.update(np.ascontiguousarray(part.offsets).data)
    return digest.hexdigest()
