"""Data loader: token-bucket batches in a reproducible order, prefetched by worker processes if there are any.

Pools of sentences are shuffled, sorted by length and cut into batches. The order is a pure function of (seed, epoch,
pool). A position in it is therefore all that a checkpoint stores, for any number of processes and data workers.

For inference, `map_batches` runs batches of similar length, halved when memory runs out.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch._C import _error_if_any_worker_fails
from torch.utils.data import DataLoader, Dataset

from regard.data.dataset import Batch, DatasetPart, Indices, Integers, TrainingDataset
from regard.errors import UserError, to_single_line


class SamplerPosition(NamedTuple):
    """Position in the batch order: the next batch of a pool of an epoch, each counted from 0."""

    epoch: int = 0
    pool: int = 0
    batch: int = 0


@dataclass(eq=False, repr=False)
class TokenBatchSampler:
    """Batches of at most `batch_tokens` tokens of examples with `sizes` tokens each."""

    sizes: npt.NDArray[np.integer]
    batch_tokens: int
    batches_per_pool: int  # about so many
    seed: int
    parts: Sequence[DatasetPart] = ()
    curriculum_epochs: int = 0  # first epochs, in which long sentences come late

    def __post_init__(self) -> None:
        self.parts = self.parts or [DatasetPart(len(self.sizes))]
        pool_tokens, mean_size = self.batches_per_pool * self.batch_tokens, max(1.0, float(self.sizes.mean()))
        self.examples_per_pool = max(1, int(pool_tokens / mean_size))
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
            batches, is_last_pool = self.pool_batches(epoch, pool), pool + 1 >= self.count_pools(epoch)
            next_pool = SamplerPosition(epoch + 1) if is_last_pool else SamplerPosition(epoch, pool + 1)
            for index, rows in enumerate(batches[batch:], batch + 1):
                yield rows, SamplerPosition(epoch, pool, index) if index < len(batches) else next_pool
            epoch, pool, batch = next_pool

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


STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGINT", "SIGTERM") if hasattr(signal, name))


class BatchRequest(NamedTuple):
    """The rows of each batch of one process in one update, and the sampler position after the whole update."""

    rows: list[Indices]
    seeds: list[int]
    position: SamplerPosition


class UpdateBatches(NamedTuple):
    """The batches of one process in one update, and the sampler position after it."""

    batches: list[Batch]
    position: SamplerPosition


class _BatchRequestDataset(Dataset[UpdateBatches]):
    """PyTorch dataset that is indexed by batch requests."""

    def __init__(self, dataset: TrainingDataset) -> None:
        self.dataset = dataset

    def __getitem__(self, request: BatchRequest) -> UpdateBatches:
        batches = [self.dataset.make_batch(rows, seed) for rows, seed in zip(request.rows, request.seeds, strict=True)]
        self.dataset.release_memory()  # reading one row maps 16 pages into memory
        return UpdateBatches(batches, request.position)


def iterate_batch_requests(
    sampler: TokenBatchSampler, position: SamplerPosition, accumulate: int, rank: int, world_size: int
) -> Iterator[BatchRequest]:
    """Yield the batches of one rank for each update: every `world_size`-th batch of the sampler.

    An update may span two epochs.
    """
    stream = sampler.iterate_batches(position)
    while True:
        rows, positions = zip(*islice(stream, accumulate * world_size), strict=True)
        seeds = [mix_seeds(sampler.seed, *positions[-1], index) for index in range(rank, len(rows), world_size)]
        yield BatchRequest(list(rows[rank::world_size]), seeds, positions[-1])


def mix_seeds(*numbers: int) -> int:
    """Return a seed that depends on each of the numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


class BatchLoader:
    """Iterator over the requested batches of each update; `close` ends its workers, also before the first batch.

    Workers are forked: build it before any thread is started, such as that of a progress bar, whose locks the workers
    would inherit. A worker that returns nothing for `timeout` seconds causes an error, which `report_worker_errors`
    turns into a UserError.

    PyTorch's SIGCHLD handler raises an exception for a dead worker wherever the program is, even in the middle of an
    update. Here dead workers raise it only while a batch is read: between two updates, where a checkpoint can still be
    saved.
    """

    def __init__(
        self,
        dataset: TrainingDataset,
        batch_requests: Iterator[BatchRequest],
        workers: int = 0,
        timeout: int = 600,
        pin_memory: bool = False,
    ) -> None:
        loader = DataLoader(
            _BatchRequestDataset(dataset),
            sampler=batch_requests,
            batch_size=None,
            num_workers=workers,
            collate_fn=_return_unchanged,
            timeout=timeout if workers else 0,
            pin_memory=pin_memory,
            multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
        )
        with _block_stop_signals():
            self._batches: Any = iter(loader)
            for worker in getattr(self._batches, "_workers", ()):
                worker._popen.terminate = worker._popen.kill  # because SIGTERM is blocked
        self._previous_handler: Any = None
        is_main_thread = threading.current_thread() is threading.main_thread()  # only it can set signal handlers
        if workers and is_main_thread and hasattr(signal, "SIGCHLD"):  # not on Windows
            self._previous_handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def __iter__(self) -> BatchLoader:
        return self

    def __next__(self) -> UpdateBatches:
        try:
            if self._previous_handler is None:
                return cast(UpdateBatches, next(self._batches))
            signal.signal(signal.SIGCHLD, lambda number, frame: _error_if_any_worker_fails())
            try:
                _error_if_any_worker_fails()  # for a worker that died before
                return cast(UpdateBatches, next(self._batches))
            finally:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the workers, also if an exception still refers to the iterator."""
        if self._previous_handler is not None:
            signal.signal(signal.SIGCHLD, self._previous_handler)
            self._previous_handler = None
        if hasattr(self._batches, "_shutdown_workers"):  # absent without workers
            self._batches._shutdown_workers()


@contextmanager
def _block_stop_signals() -> Iterator[None]:
    """Block `STOP_SIGNALS` inside the context and, for good, in the processes that are started in it.

    Supervisors send them to every process of a run. Only the process that trains reacts, and needs its workers until it
    has saved a checkpoint.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


@contextmanager
def report_worker_errors() -> Iterator[None]:
    """Raise a UserError for a data worker that died or hangs."""
    try:
        yield
    except (RuntimeError, ConnectionError) as error:  # a connection to a worker that was killed
        if isinstance(error, RuntimeError) and "DataLoader" not in str(error):
            raise
        reason = to_single_line(error)
        raise UserError(f"loading training data failed: {reason} (data.workers, data.timeout)") from error


def _return_unchanged(batches: Any) -> Any:
    """Replace PyTorch's collation: the dataset already returns whole batches."""
    return batches


T = TypeVar("T")


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an error means out of memory, including driver and CPU allocator errors of other types."""
    phrases = "out of memory", "DefaultCPUAllocator"
    return isinstance(error, torch.OutOfMemoryError) or any(phrase in str(error) for phrase in phrases)


def _run_halving_on_oom(run_batch: Callable[[Indices], T], rows: Indices) -> list[T]:
    """Run a batch; on out of memory run its two halves instead, recursively."""
    try:
        return [run_batch(rows)]
    except RuntimeError as error:
        if not is_out_of_memory(error) or len(rows) == 1:
            raise
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    middle = len(rows) // 2
    return _run_halving_on_oom(run_batch, rows[:middle]) + _run_halving_on_oom(run_batch, rows[middle:])


def map_batches(run_batch: Callable[[Indices], T], sizes: npt.NDArray[np.integer], batch_tokens: int) -> list[T]:
    """Run a function on token-limited batches of row indices, shortest examples first; return one result per batch."""
    batches = split_by_tokens(np.argsort(sizes, kind="stable"), sizes, batch_tokens)
    return [result for rows in batches for result in _run_halving_on_oom(run_batch, rows)]


def map_batches_in_order(run_batch: Callable[[Indices], Sequence[T]], sizes: Integers, batch_tokens: int) -> list[T]:
    """Run a function on batches as `map_batches` does; return one result per example, in the original order."""
    sorted_results = list(chain.from_iterable(map_batches(run_batch, sizes, batch_tokens)))
    positions = np.argsort(np.argsort(sizes, kind="stable"))  # inverse permutation: rank of each example by size
    return [sorted_results[position] for position in positions.tolist()]
