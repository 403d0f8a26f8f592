"""Synthetic regression corpus: the target at each step is a weighted sum of inputs before and after it.

The inputs are random numbers from −1 to 1. The sum is over ten steps before and twenty after, with weights that fall
off linearly on both sides, as in the paper's artificial data (Schuster & Paliwal 1997):
y_t = Σ_{d=1..10} x_{t-d} (1 − d/10) / 10 + Σ_{d=0..20} x_{t+d} (1 − d/20) / 20. Beyond its ends a series is zeros.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from regard.synthetic.corpus import SyntheticCorpus, write_splits

_STEPS_BEFORE, _STEPS_AFTER = 10, 20
_LENGTH_RANGE = (60, 100)  # minimum and maximum length of a series


def write_regression_corpus(folder: Path, seed: int = 1) -> SyntheticCorpus:
    """Write `train.txt`, `dev.txt` and `test.txt`, each with a column of inputs and a column of targets."""
    random = np.random.default_rng(seed)

    def make_text(name: str, size: int) -> str:
        series = (random.uniform(-1, 1, random.integers(_LENGTH_RANGE[0], _LENGTH_RANGE[1] + 1)) for _ in range(size))
        return "\n".join(map(_format_series_columns, series))

    return write_splits(folder, "regression", ".txt", make_text)


def compute_target(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the weighted sum around each step."""
    offsets = np.arange(-_STEPS_BEFORE, _STEPS_AFTER + 1)
    weights = np.where(
        offsets < 0, (1 + offsets / _STEPS_BEFORE) / _STEPS_BEFORE, (1 - offsets / _STEPS_AFTER) / _STEPS_AFTER
    )
    padded = np.concatenate([np.zeros(_STEPS_BEFORE), x, np.zeros(_STEPS_AFTER)])
    return np.convolve(padded, weights[::-1], "valid")


def _format_series_columns(x: npt.NDArray[np.float64]) -> str:
    """Return a line for each step: input and target."""
    return "".join(f"{value:.6f} {target:.6f}\n" for value, target in zip(x, compute_target(x), strict=True))
