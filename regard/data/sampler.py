"""In which order a corpus is trained on: pools of sentences, shuffled, sorted by length and cut into batches.

The order is a pure function of (seed, epoch, pool), so that a place in it is all there is to remember, however many
processes follow it and however many workers read ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.indexed_dataset import Indices, Integers


class SamplerPosition(NamedTuple):
    """How far an order has been followed: the next batch of a pool of an epoch, each counted from 0."""

    epoch: int = 0
    pool: int = 0
    batch: int = 0


class DatasetPart(NamedTuple):
    """Pairs that come one behind the other, and how often each is to come in an epoch."""

    num_examples: int
    weight: float = 1.0


class TokenBatchSampler:
    """The batches of a corpus whose pairs take `sizes` tokens each."""

    def __init__(
        self,
        sizes: npt.NDArray[np.integer],
        batch_tokens: int,
        batches_per_pool: int,
        seed: int,
        parts: Sequence[DatasetPart] = (),
        curriculum_epochs: int = 0,
    ) -> None:
        """A pool is `pool` batches large. In the first `curriculum` epochs long sentences come late."""
        self.sizes = sizes
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.parts = parts or [DatasetPart(len(sizes))]
        self.curriculum_epochs = curriculum_epochs
        self.examples_per_pool = max(1, int(batches_per_pool * batch_tokens / max(1.0, float(sizes.mean()))))
        self.epoch_rows = lru_cache(maxsize=1)(self._shuffle_epoch)
        self.pool_batches = lru_cache(maxsize=2)(self._split_pool)

    def _shuffle_epoch(self, epoch: int) -> Indices:
        """The pairs of an epoch, each as often as its weight says; of a fraction, so many, chosen by chance."""
        random = np.random.default_rng([self.seed, epoch])
        chosen: list[Integers] = []
        start = 0
        for part in self.parts:
            whole, rest = divmod(part.weight, 1)
            own = np.arange(start, start + part.num_examples, dtype=np.uint32)  # half of what the usual kind takes
            chosen.extend([own] * int(whole))
            if rest:
                chosen.append(random.permutation(own)[: max(1, round(rest * part.num_examples))])
            start += part.num_examples
        rows: Integers = np.concatenate(chosen)
        when = random.random(len(rows), dtype=np.float32)
        if epoch < self.curriculum_epochs:
            share = np.empty(len(rows), dtype=np.float32)  # of the pairs, how many are shorter
            share[np.argsort(self.sizes[rows], kind="stable")] = np.linspace(0, 1, len(rows), dtype=np.float32)
            when = share + when * (1 - share)  # none comes before its time, the shortest come at any
        return rows[np.argsort(when, kind="stable")]

    def count_pools(self, epoch: int) -> int:
        """How many pools an epoch has."""
        return -(-len(self.epoch_rows(epoch)) // self.examples_per_pool)

    def _split_pool(self, epoch: int, pool: int) -> list[Indices]:
        """The batches of a pool, as indices of pairs."""
        some = self.epoch_rows(epoch)[pool * self.examples_per_pool : (pool + 1) * self.examples_per_pool]
        batches = split_by_tokens(some[np.argsort(self.sizes[some], kind="stable")], self.sizes, self.batch_tokens)
        random = np.random.default_rng([self.seed, epoch, pool])
        return [batches[index] for index in random.permutation(len(batches))]

    def iterate_batches(self, position: SamplerPosition) -> Iterator[tuple[Indices, SamplerPosition]]:
        """The batches from a place on, without end, each with the place behind it."""
        epoch, pool, batch = position
        while True:
            batches = self.pool_batches(epoch, pool)
            for number in range(batch, len(batches)):
                last = number + 1 == len(batches)
                behind = self._find_next_pool(epoch, pool) if last else SamplerPosition(epoch, pool, number + 1)
                yield batches[number], behind
            epoch, pool, batch = self._find_next_pool(epoch, pool)

    def _find_next_pool(self, epoch: int, pool: int) -> SamplerPosition:
        """The beginning of the pool after this one, in this epoch or the next."""
        return SamplerPosition(epoch, pool + 1) if pool + 1 < self.count_pools(epoch) else SamplerPosition(epoch + 1)

    def iterate_updates(
        self, position: SamplerPosition, batches_per_update: int
    ) -> Iterator[tuple[list[Indices], SamplerPosition]]:
        """The same, so many batches at a time; a few may be of the next epoch."""
        stream = self.iterate_batches(position)
        while True:
            some = [next(stream) for _ in range(batches_per_update)]
            yield [rows for rows, _ in some], some[-1][1]

    def compute_epochs(self, position: SamplerPosition) -> float:
        """Passes over the data up to a place."""
        epoch, pool, batch = position
        used = pool * self.examples_per_pool + (sum(map(len, self.pool_batches(epoch, pool)[:batch])) if batch else 0)
        return epoch + used / len(self.epoch_rows(epoch))

    def has_position(self, position: SamplerPosition) -> bool:
        """Whether there is such a place."""
        in_epoch = 0 <= position.pool < self.count_pools(position.epoch)
        return in_epoch and 0 <= position.batch < len(self.pool_batches(position.epoch, position.pool))

    @cached_property
    def batches_per_epoch(self) -> int:
        """About how many batches the first epoch has."""
        rows = len(self.epoch_rows(0))
        return round(
            len(self.pool_batches(0, 0)) * rows / min(rows, self.examples_per_pool)
        )  # the last pool may be smaller


def split_by_tokens(rows: Indices, sizes: npt.NDArray[np.integer], batch_tokens: int) -> list[Indices]:
    """Rows in order of size, cut so that rows times the longest stay within the tokens; one that is longer is alone."""
    batches, start, long = [], 0, sizes[rows].tolist()
    for end in range(1, len(rows) + 1):
        if end == len(rows) or long[end] * (end + 1 - start) > batch_tokens:
            batches.append(rows[start:end])
            start = end
    return batches
