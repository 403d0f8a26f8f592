"""Work that may not fit into the memory at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from regard.data.ragged import Indices

T = TypeVar("T")


def lacks_memory(error: RuntimeError) -> bool:
    """Whether this is what PyTorch says when there is no memory left; for a CPU's it has no type of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def in_pieces(work: Callable[[Indices], T], rows: Indices) -> list[T]:
    """What work finds for some rows: at once, or in halves where there is not enough memory for that."""
    try:
        return [work(rows)]
    except RuntimeError as error:
        if not lacks_memory(error) or len(rows) == 1:
            raise
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    middle = len(rows) // 2
    return in_pieces(work, rows[:middle]) + in_pieces(work, rows[middle:])
