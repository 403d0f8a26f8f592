"""What a search with models finds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Hypothesis(NamedTuple):
    """A target, what the model thinks of it, and where it looked for each token."""

    tokens: list[int]  # with EOS where it ended
    log_prob: float  # the plain sum
    score: float  # what it was ranked by
    attention: Floats | None  # len(tokens) × source length; None for a model without attention
