"""Data loader: the batches of each update, prefetched by worker processes if there are any.

The sampler alone determines the batches; the number of workers changes nothing.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from torch._C import _error_if_any_worker_fails
from torch.utils.data import DataLoader, Dataset

from regard.data.dataset import Batch, Indices, TrainingDataset
from regard.data.sampler import SamplerPosition, TokenBatchSampler
from regard.errors import UserError, to_single_line

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
    """Yield the batches of one rank for each update: every `world_size`-th batch of the sampler."""
    for rows, next_position in sampler.iterate_updates(position, accumulate * world_size):
        own_indices = range(rank, len(rows), world_size)
        seeds = [mix_seeds(sampler.seed, *next_position, index) for index in own_indices]
        yield BatchRequest([rows[index] for index in own_indices], seeds, next_position)


def mix_seeds(*numbers: int) -> int:
    """Return a seed that depends on each of the numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


class LoadedBatches:
    """Iterator over the batches of each update; `close` ends its workers, also before the first batch.

    PyTorch's SIGCHLD handler raises an exception for a dead worker wherever the program is, even in the middle of an
    update. Here dead workers raise it only while a batch is read: between two updates, where a checkpoint can still be
    saved.
    """

    def __init__(self, loader: DataLoader[UpdateBatches]) -> None:
        with _block_stop_signals():
            self._batches: Any = iter(loader)
        for worker in getattr(self._batches, "_workers", ()):
            worker._popen.terminate = worker._popen.kill  # because SIGTERM is blocked
        self._previous_handler: Any = None
        is_main_thread = threading.current_thread() is threading.main_thread()  # only it can set signal handlers
        if loader.num_workers and is_main_thread and hasattr(signal, "SIGCHLD"):  # not on Windows
            self._previous_handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def __iter__(self) -> LoadedBatches:
        return self

    def __next__(self) -> UpdateBatches:
        try:
            with self._raise_if_worker_dies():
                update: UpdateBatches = next(self._batches)
        except BaseException:
            self.close()
            raise
        return update

    @contextmanager
    def _raise_if_worker_dies(self) -> Iterator[None]:
        """Raise an error for a worker that dies inside the context, or died before."""
        if self._previous_handler is None:
            yield
            return
        signal.signal(signal.SIGCHLD, lambda number, frame: _error_if_any_worker_fails())
        try:
            _error_if_any_worker_fails()
            yield
        finally:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)

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


def start_batch_loader(
    dataset: TrainingDataset,
    batch_requests: Iterator[BatchRequest],
    workers: int = 0,
    timeout: int = 600,
    pin_memory: bool = False,
) -> LoadedBatches:
    """Start the workers and return the requested batches.

    A worker that returns nothing for `timeout` seconds causes an error, which `report_worker_errors` turns into a
    UserError. Workers are forked: call this before any thread is started, such as that of a progress bar, whose locks
    the workers would inherit.
    """
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
    return LoadedBatches(loader)


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
