"""Data loader: the batches of each update, prefetched by worker processes if there are any.

The sampler alone determines the batches; the number of workers changes nothing.
"""

from __future__ import annotations

import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader, Dataset

from regard.data.dataset import Batch, Indices
from regard.data.sampler import SamplerPosition, TokenBatchSampler
from regard.errors import UserError, to_single_line

B_co = TypeVar("B_co", covariant=True)
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGINT", "SIGTERM") if hasattr(signal, name))


class TrainingDataset(Protocol[B_co]):
    """Interface of a dataset for the training loop."""

    sizes: npt.NDArray[np.int32]  # tokens of each example in a batch
    parts: Any  # sequence of DatasetPart
    fingerprint: str  # identifies the content

    def make_batch(self, rows: Indices, seed: int) -> B_co:
        """Return the examples at `rows` as a batch; `seed` is for random augmentation."""
        ...

    def release_memory(self) -> None:
        """Release memory that can be read again from disk."""
        ...


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

    def __init__(self, dataset: TrainingDataset[Any]) -> None:
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


@dataclass(frozen=True)
class _SigchldHandler:
    """SIGCHLD handler that does nothing between two reads, as long as the batches exist."""

    handler: Callable[[int, FrameType | None], Any]
    batches: weakref.ref[LoadedBatches]  # weak, so that unclosed batches are collected and end their workers

    def __call__(self, number: int, frame: FrameType | None) -> None:
        batches = self.batches()
        if batches is None or batches.is_reading:
            self.handler(number, frame)


class LoadedBatches:
    """Iterator over the batches of each update; `close` ends its workers, also before the first batch.

    PyTorch's SIGCHLD handler raises an exception for a dead worker wherever the program is, even in the middle of an
    update. Here it is called only while a batch is read: between two updates, where a checkpoint can still be saved.
    """

    def __init__(self, batches: Any) -> None:
        self._batches = batches  # an iterator of PyTorch's DataLoader
        self.is_reading = False
        self._raise_if_dead: Any = None  # PyTorch's handler of SIGCHLD
        if hasattr(batches, "_shutdown_workers") and hasattr(signal, "SIGCHLD"):  # with workers, not on Windows
            handler = signal.getsignal(signal.SIGCHLD)
            if callable(handler) and threading.current_thread() is threading.main_thread():
                self._raise_if_dead = handler.handler if isinstance(handler, _SigchldHandler) else handler
                signal.signal(signal.SIGCHLD, _SigchldHandler(self._raise_if_dead, weakref.ref(self)))

    def __iter__(self) -> LoadedBatches:
        return self

    def __next__(self) -> UpdateBatches:
        try:
            self.is_reading = True
            if self._raise_if_dead is not None:
                self._raise_if_dead(signal.SIGCHLD, None)  # for a worker that died since the last batch
            update: UpdateBatches = next(self._batches)
        except BaseException:
            self.close()
            raise
        finally:
            self.is_reading = False
        return update

    def close(self) -> None:
        """End the workers, also if an exception still refers to the iterator."""
        if self._raise_if_dead is not None:
            signal.signal(signal.SIGCHLD, self._raise_if_dead)
            self._raise_if_dead = None
        if hasattr(self._batches, "_shutdown_workers"):  # absent without workers
            self._batches._shutdown_workers()


def start_batch_loader(
    dataset: TrainingDataset[Any],
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
        multiprocessing_context=_WorkerContext() if workers and sys.platform == "linux" else None,
        worker_init_fn=_block_signals,
    )
    return LoadedBatches(iter(loader))


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


if sys.platform == "linux":
    from multiprocessing.context import ForkContext, ForkProcess
    from multiprocessing.popen_fork import Popen
    from multiprocessing.process import BaseProcess

    class _WorkerPopen(Popen):
        """Fork a data worker with `STOP_SIGNALS` blocked from its first instruction.

        Supervisors send them to every process of a run. Only the process that trains reacts, and needs its workers
        until it has saved a checkpoint. It ends workers that do not exit by themselves with SIGKILL.
        """

        def __init__(self, process_obj: BaseProcess) -> None:
            previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            try:
                super().__init__(process_obj)  # does not return in the worker
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)

        def terminate(self) -> None:
            self.kill()

    class _WorkerProcess(ForkProcess):
        _Popen = staticmethod(_WorkerPopen)

    class _WorkerContext(ForkContext):
        """Multiprocessing context for data workers that survive signals to the whole run."""

        Process = _WorkerProcess


def _block_signals(worker: int) -> None:
    """Block `STOP_SIGNALS` in a worker, except SIGTERM, with which PyTorch ends workers.

    Forked workers have SIGTERM blocked as well, from their start: they are ended with SIGKILL.
    """
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, set(STOP_SIGNALS) - {signal.SIGTERM})


def _return_unchanged(batches: Any) -> Any:
    """Replace PyTorch's collation: the dataset already returns whole batches."""
    return batches
