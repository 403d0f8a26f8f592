"""What a search finds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Hypothesis(NamedTuple):
    """A target, what the model thinks of it, and where it looked for each token."""

    tokens: list[int]  # with EOS where it ended
    log_prob: float  # the plain sum
    score: float  # what it was ranked by
    attention: npt.NDArray[np.float32] | None  # len(tokens) × source length; None for a model without attention


def penalised(log_prob: float, length: int, length_penalty: float) -> float:
    """Log-probability over ((5 + length) / 6)^length_penalty (Wu et al. 2016, eq. 14); EOS counts in the length."""
    return log_prob / float(((5 + length) / 6) ** length_penalty)
