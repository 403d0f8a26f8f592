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

from regard.data.ragged import Indices, Integers


class Place(NamedTuple):
    """How far an order has been followed: the next batch of a pool of an epoch, each counted from 0."""

    epoch: int = 0
    pool: int = 0
    batch: int = 0


class Part(NamedTuple):
    """Pairs that come one behind the other, and how often each is to come in an epoch."""

    pairs: int
    weight: float = 1.0


class Order:
    """The batches of a corpus whose pairs take `sizes` tokens each."""

    def __init__(
        self,
        sizes: npt.NDArray[np.integer],
        batch_tokens: int,
        pool: int,
        seed: int,
        parts: Sequence[Part] = (),
        curriculum: int = 0,
    ) -> None:
        """A pool is `pool` batches large. In the first `curriculum` epochs long sentences come late."""
        self.sizes = sizes
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.parts = parts or [Part(len(sizes))]
        self.curriculum = curriculum
        self.in_pool = max(1, int(pool * batch_tokens / max(1.0, float(sizes.mean()))))
        self.rows = lru_cache(maxsize=1)(self.shuffled)
        self.batches = lru_cache(maxsize=2)(self.cut)

    def shuffled(self, epoch: int) -> Indices:
        """The pairs of an epoch, each as often as its weight says; of a fraction, so many, chosen by chance."""
        random = np.random.default_rng([self.seed, epoch])
        chosen: list[Integers] = []
        start = 0
        for part in self.parts:
            whole, rest = divmod(part.weight, 1)
            own = np.arange(start, start + part.pairs, dtype=np.uint32)  # half of what the usual kind takes
            chosen.extend([own] * int(whole))
            if rest:
                chosen.append(random.permutation(own)[: max(1, round(rest * part.pairs))])
            start += part.pairs
        rows: Integers = np.concatenate(chosen)
        when = random.random(len(rows), dtype=np.float32)
        if epoch < self.curriculum:
            share = np.empty(len(rows), dtype=np.float32)  # of the pairs, how many are shorter
            share[np.argsort(self.sizes[rows], kind="stable")] = np.linspace(0, 1, len(rows), dtype=np.float32)
            when = share + when * (1 - share)  # none comes before its time, the shortest come at any
        return rows[np.argsort(when, kind="stable")]

    def pools(self, epoch: int) -> int:
        """How many pools an epoch has."""
        return -(-len(self.rows(epoch)) // self.in_pool)

    def cut(self, epoch: int, pool: int) -> list[Indices]:
        """The batches of a pool, as indices of pairs."""
        some = self.rows(epoch)[pool * self.in_pool : (pool + 1) * self.in_pool]
        batches = cuts(some[np.argsort(self.sizes[some], kind="stable")], self.sizes, self.batch_tokens)
        random = np.random.default_rng([self.seed, epoch, pool])
        return [batches[index] for index in random.permutation(len(batches))]

    def after(self, place: Place) -> Iterator[tuple[Indices, Place]]:
        """The batches from a place on, without end, each with the place behind it."""
        epoch, pool, batch = place
        while True:
            batches = self.batches(epoch, pool)
            for number in range(batch, len(batches)):
                last = number + 1 == len(batches)
                behind = self.next_pool(epoch, pool) if last else Place(epoch, pool, number + 1)
                yield batches[number], behind
            epoch, pool, batch = self.next_pool(epoch, pool)

    def next_pool(self, epoch: int, pool: int) -> Place:
        """The beginning of the pool after this one, in this epoch or the next."""
        return Place(epoch, pool + 1) if pool + 1 < self.pools(epoch) else Place(epoch + 1)

    def updates(self, place: Place, batches: int) -> Iterator[tuple[list[Indices], Place]]:
        """The same, so many batches at a time; a few may be of the next epoch."""
        stream = self.after(place)
        while True:
            some = [next(stream) for _ in range(batches)]
            yield [rows for rows, _ in some], some[-1][1]

    def epochs(self, place: Place) -> float:
        """Passes over the data up to a place."""
        epoch, pool, batch = place
        used = pool * self.in_pool + (sum(map(len, self.batches(epoch, pool)[:batch])) if batch else 0)
        return epoch + used / len(self.rows(epoch))

    def has(self, place: Place) -> bool:
        """Whether there is such a place."""
        in_epoch = 0 <= place.pool < self.pools(place.epoch)
        return in_epoch and 0 <= place.batch < len(self.batches(place.epoch, place.pool))

    @cached_property
    def per_epoch(self) -> int:
        """About how many batches the first epoch has."""
        rows = len(self.rows(0))
        return round(len(self.batches(0, 0)) * rows / min(rows, self.in_pool))  # the last pool may be smaller


def cuts(rows: Indices, sizes: npt.NDArray[np.integer], batch_tokens: int) -> list[Indices]:
    """Rows in order of size, cut so that rows times the longest stay within the tokens; one that is longer is alone."""
    batches, start, long = [], 0, sizes[rows].tolist()
    for end in range(1, len(rows) + 1):
        if end == len(rows) or long[end] * (end + 1 - start) > batch_tokens:
            batches.append(rows[start:end])
            start = end
    return batches
