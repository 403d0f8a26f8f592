"""Work on many examples: those of about one size together, and in smaller lots where the memory is too small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from regard.data.order import cuts
from regard.data.ragged import Indices

T = TypeVar("T")


def lacks_memory(error: RuntimeError) -> bool:
    """Whether there is no memory left; where the driver says so, or it is a CPU's, that has no type of its own."""
    words = "out of memory", "DefaultCPUAllocator"
    return isinstance(error, torch.OutOfMemoryError) or any(some in str(error) for some in words)


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


def in_lots(work: Callable[[Indices], T], sizes: npt.NDArray[np.integer], batch_tokens: int) -> list[T]:
    """What work finds for one lot of rows after the other, from the smallest examples to the largest."""
    lots = cuts(np.argsort(sizes, kind="stable"), sizes, batch_tokens)
    return [found for rows in lots for found in in_pieces(work, rows)]


def in_order(work: Callable[[Indices], Sequence[T]], sizes: npt.NDArray[np.integer], batch_tokens: int) -> list[T]:
    """What work finds for each of its rows, brought back into the order of the examples."""
    found = [one for some in in_lots(work, sizes, batch_tokens) for one in some]
    places = np.argsort(np.argsort(sizes, kind="stable"))  # where in all that was found each example is
    return [found[place] for place in places.tolist()]
