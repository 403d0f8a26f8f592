"""Batches side by side, each on one thread of the processor.

The products of a batch are small, and gain little from a second thread; a second batch beside it takes hardly longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def width(batches: int) -> int:
    """How many at a time: one for each of PyTorch's threads; whoever works in threads already has shared them out."""
    return min(batches, torch.get_num_threads()) if threading.current_thread() is threading.main_thread() else 1


def abreast(work: Callable[[T], R], items: Sequence[T], at_once: int) -> list[R]:
    """What the work gives of each item, in order, so many at a time."""
    if at_once < 2:
        return list(map(work, items))
    before, failed = torch.get_num_threads(), list[BaseException]()
    pool = ThreadPoolExecutor(at_once, "batch", torch.set_num_threads, (1,))

    def unless_failed(item: T) -> R:
        if failed:
            raise CancelledError
        try:
            return work(item)
        except BaseException as error:
            failed.append(error)
            raise

    try:
        return list(pool.map(unless_failed, items))
    except CancelledError:
        raise failed[0] from None  # one behind it may have failed before it began
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)  # one thread's number is everybody's, in some of the libraries below
