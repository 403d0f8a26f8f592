"""What is held out of the training data to validate on, where no dev set is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from regard.data.pair import Pair
from regard.data.survey import chosen, hashed
from regard.errors import UserError

T = TypeVar("T")


def parted(
    examples: Sequence[T], content: Callable[[T], Pair], seed: int, most: int, alone: str
) -> tuple[list[T], list[T]]:
    """Examples to train on, and at most so many to validate on: chosen by what is read in them, not by their order.

    Those that are read alike are on one side. `alone` is what is the matter where all are.
    """
    hashes = np.array([hashed(content(one), seed) for one in examples], dtype=np.uint64)
    if len(np.unique(hashes)) < 2:
        raise UserError(f"{alone}, too little to train and validate on; give --dev")
    held = np.isin(hashes, chosen(hashes, most)).tolist()
    both = list(zip(examples, held, strict=True))
    return [one for one, out in both if not out], [one for one, out in both if out]
