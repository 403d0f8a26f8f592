"""Series that come with regard: what is to be found at each step is made of numbers before it and behind it.

A stream of random numbers from −1 to 1, and the weighted sum of those within ten steps before and twenty behind, the
weights falling off linearly on both sides, as in the paper's artificial data (Schuster & Paliwal 1997):
y_t = Σ_{d=1..10} x_{t-d} (1 − d/10) / 10 + Σ_{d=0..20} x_{t+d} (1 − d/20) / 20. Beyond its ends a series is zeros.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from regard.tasks.regression.files import Table
from regard.tasks.task import Corpus

BEFORE, BEHIND = 10, 20
LENGTHS = (60, 100)  # of a series: at least, at most
SIZES = {"train": 400, "dev": 40, "test": 100}
SMALL: dict[str, Any] = {
    "model.size": 32,
    "training.steps": 600,
    "training.batch_tokens": 1600,
    "training.learning_rate": 0.01,
    "training.validate_every": 100,
    "training.checkpoint_every": 100,
}


def write(folder: Path, seed: int = 1) -> Corpus:
    """`train.txt`, `dev.txt` and `test.txt`, two columns of numbers, and what makes a recipe small."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    paths = {}
    for name, size in SIZES.items():
        paths[name] = folder / f"{name}.txt"
        drawn = (random.uniform(-1, 1, random.integers(LENGTHS[0], LENGTHS[1] + 1)) for _ in range(size))
        paths[name].write_text("\n".join(map(in_columns, drawn)), encoding="utf-8")
    return Corpus([paths["train"]], [paths["dev"]], [paths["test"]], SMALL)


def target(x: Table) -> Table:
    """The weighted sum around each step."""
    offsets = np.arange(-BEFORE, BEHIND + 1)
    weights = np.where(offsets < 0, (1 + offsets / BEFORE) / BEFORE, (1 - offsets / BEHIND) / BEHIND)
    wide = np.concatenate([np.zeros(BEFORE), x, np.zeros(BEHIND)])
    return np.convolve(wide, weights[::-1], "valid")


def in_columns(x: Table) -> str:
    """A line for each step: the number, and what is to be found."""
    return "".join(f"{one:.6f} {sought:.6f}\n" for one, sought in zip(x, target(x), strict=True))
