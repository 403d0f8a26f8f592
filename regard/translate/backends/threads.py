"""Decode several batches in parallel on the CPU, one thread per batch.

The matrix products of a batch are small and gain little from a second thread, so a second batch in parallel takes
hardly longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def choose_worker_count(batches: int) -> int:
    """Return the number of parallel batches: PyTorch's thread count, or 1 outside of the main thread.

    A caller that uses threads of its own has divided the cores among them already.
    """
    return min(batches, torch.get_num_threads()) if threading.current_thread() is threading.main_thread() else 1


def map_in_threads(work: Callable[[T], R], items: Sequence[T], workers: int) -> list[R]:
    """Apply `work` to each item in a pool of `workers` threads; return the results in order."""
    if workers < 2:
        return list(map(work, items))
    failed = list[BaseException]()
    pool = ThreadPoolExecutor(workers, "batch")

    def run_unless_failed(item: T) -> R:
        if failed:
            raise CancelledError
        try:
            return work(item)
        except BaseException as error:
            failed.append(error)
            raise

    try:
        _limit_workers_to_one_thread(pool, workers)
        return list(pool.map(run_unless_failed, items))
    except CancelledError:
        raise failed[0] from None  # the first error, which may be that of a later item
    finally:
        pool.shutdown(cancel_futures=True)


def _limit_workers_to_one_thread(pool: ThreadPoolExecutor, workers: int) -> None:
    """Start the workers of a pool, each with one thread for PyTorch's operators.

    `torch.set_num_threads` sets the number of the calling thread, and the one that every other thread takes over when
    it first uses PyTorch. The latter is restored before any work begins, so that other threads of the program are not
    left with one thread.
    """
    before = torch.get_num_threads()
    started = threading.Barrier(workers + 1)

    def set_one_thread() -> None:
        torch.get_num_threads()  # takes over the common number now rather than later, which would undo the next line
        torch.set_num_threads(1)
        started.wait()

    try:
        for _ in range(workers):  # each task waits for the others, so that each runs in a different worker
            pool.submit(set_one_thread)
        started.wait()
    finally:
        started.abort()  # releases workers that still wait after an error
        torch.set_num_threads(before)
