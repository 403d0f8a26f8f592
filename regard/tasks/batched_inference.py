"""Batched inference: batches of similar length, halved when memory runs out, results in input order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from regard.data.dataset import Indices
from regard.data.loader import split_by_tokens

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


def map_batches_in_order(
    run_batch: Callable[[Indices], Sequence[T]], sizes: npt.NDArray[np.integer], batch_tokens: int
) -> list[T]:
    """Run a function on batches as `map_batches` does; return one result per example, in the original order."""
    sorted_results = [
        result for batch_results in map_batches(run_batch, sizes, batch_tokens) for result in batch_results
    ]
    positions = np.argsort(np.argsort(sizes, kind="stable"))  # inverse permutation: rank of each example by size
    return [sorted_results[position] for position in positions.tolist()]
