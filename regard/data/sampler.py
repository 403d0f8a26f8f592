"""Token-bucket batch sampler: pools of sentences are shuffled, sorted by length and cut into batches.

The order is a pure function of (seed, epoch, pool). A position in it is therefore all that a checkpoint stores, for any
number of processes and data workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.dataset import DatasetPart, Indices, Integers


class SamplerPosition(NamedTuple):
    """Position in the batch order: the next batch of a pool of an epoch, each counted from 0."""

    epoch: int = 0
    pool: int = 0
    batch: int = 0


class TokenBatchSampler:
    """Batches of at most `batch_tokens` tokens of examples with `sizes` tokens each."""

    def __init__(
        self,
        sizes: npt.NDArray[np.integer],
        batch_tokens: int,
        batches_per_pool: int,
        seed: int,
        parts: Sequence[DatasetPart] = (),
        curriculum_epochs: int = 0,
    ) -> None:
        """Set the size of a pool to about `batches_per_pool` batches.

        In the first `curriculum_epochs` epochs long sentences come late.
        """
        self.sizes = sizes
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.parts = parts or [DatasetPart(len(sizes))]
        self.curriculum_epochs = curriculum_epochs
        self.examples_per_pool = max(1, int(batches_per_pool * batch_tokens / max(1.0, float(sizes.mean()))))
        self.epoch_rows = lru_cache(maxsize=1)(self._shuffle_epoch)
        self.pool_batches = lru_cache(maxsize=2)(self._split_pool)

    def _shuffle_epoch(self, epoch: int) -> Indices:
        """Return the shuffled examples of an epoch, each as often as its weight; fractions add a random subset."""
        random = np.random.default_rng([self.seed, epoch])
        chosen: list[Integers] = []
        start = 0
        for part in self.parts:
            repeats, fraction = divmod(part.weight, 1)
            part_rows = np.arange(start, start + part.num_examples, dtype=np.uint32)  # half the memory of int64
            chosen.extend([part_rows] * int(repeats))
            if fraction:
                chosen.append(random.permutation(part_rows)[: max(1, round(fraction * part.num_examples))])
            start += part.num_examples
        rows: Integers = np.concatenate(chosen)
        sort_key = random.random(len(rows), dtype=np.float32)
        if epoch < self.curriculum_epochs:
            quantile = np.empty(len(rows), dtype=np.float32)  # fraction of examples that are shorter
            quantile[np.argsort(self.sizes[rows], kind="stable")] = np.linspace(0, 1, len(rows), dtype=np.float32)
            # Drawn between its quantile and 1: the shortest come at any time, the longest at the end.
            sort_key = quantile + sort_key * (1 - quantile)
        return rows[np.argsort(sort_key, kind="stable")]

    def count_pools(self, epoch: int) -> int:
        """Return the number of pools of an epoch."""
        return -(-len(self.epoch_rows(epoch)) // self.examples_per_pool)

    def _split_pool(self, epoch: int, pool: int) -> list[Indices]:
        """Return the batches of a pool, as indices of examples."""
        rows = self.epoch_rows(epoch)[pool * self.examples_per_pool : (pool + 1) * self.examples_per_pool]
        batches = split_by_tokens(rows[np.argsort(self.sizes[rows], kind="stable")], self.sizes, self.batch_tokens)
        random = np.random.default_rng([self.seed, epoch, pool])
        return [batches[index] for index in random.permutation(len(batches))]

    def iterate_batches(self, position: SamplerPosition) -> Iterator[tuple[Indices, SamplerPosition]]:
        """Yield batches without end, starting at a position, each with the position after it."""
        epoch, pool, batch = position
        while True:
            batches, next_pool = self.pool_batches(epoch, pool), self._find_next_pool(epoch, pool)
            for index, rows in enumerate(batches[batch:], batch + 1):
                yield rows, SamplerPosition(epoch, pool, index) if index < len(batches) else next_pool
            epoch, pool, batch = next_pool

    def _find_next_pool(self, epoch: int, pool: int) -> SamplerPosition:
        """Return the start of the next pool, in this epoch or the next."""
        return SamplerPosition(epoch, pool + 1) if pool + 1 < self.count_pools(epoch) else SamplerPosition(epoch + 1)

    def iterate_updates(
        self, position: SamplerPosition, batches_per_update: int
    ) -> Iterator[tuple[list[Indices], SamplerPosition]]:
        """Yield `batches_per_update` batches at a time, and the position after them; an update may span two epochs."""
        stream = self.iterate_batches(position)
        while True:
            batches = [next(stream) for _ in range(batches_per_update)]
            yield [rows for rows, _ in batches], batches[-1][1]

    def compute_epochs(self, position: SamplerPosition) -> float:
        """Return the number of passes over the data up to a position."""
        epoch, pool, batch = position
        used = pool * self.examples_per_pool + (sum(map(len, self.pool_batches(epoch, pool)[:batch])) if batch else 0)
        return epoch + used / len(self.epoch_rows(epoch))

    def has_position(self, position: SamplerPosition) -> bool:
        """Return True if the position exists in this order."""
        in_epoch = 0 <= position.pool < self.count_pools(position.epoch)
        return in_epoch and 0 <= position.batch < len(self.pool_batches(position.epoch, position.pool))

    @cached_property
    def batches_per_epoch(self) -> int:
        """Estimated number of batches of the first epoch."""
        rows = len(self.epoch_rows(0))
        # Extrapolated from the first pool; the last one may be smaller.
        return round(len(self.pool_batches(0, 0)) * rows / min(rows, self.examples_per_pool))


def split_by_tokens(rows: Indices, sizes: npt.NDArray[np.integer], batch_tokens: int) -> list[Indices]:
    """Cut rows, sorted by size, into batches whose number of rows times longest row is at most `batch_tokens`.

    A longer row is a batch of its own.
    """
    batches, start, row_sizes = [], 0, sizes[rows].tolist()
    for end in range(1, len(rows) + 1):
        if end == len(rows) or row_sizes[end] * (end + 1 - start) > batch_tokens:
            batches.append(rows[start:end])
            start = end
    return batches
