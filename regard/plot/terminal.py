"""An alignment drawn with characters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len

SHADES = " ░▒▓█"


def drawing(weights: npt.NDArray[np.float32], source: Sequence[str], target: Sequence[str]) -> str:
    """A row for each target word, two columns for each source word, whose names stand below, on slanting lines."""
    margin = max(map(cell_len, target), default=0)  # in columns of the terminal: a Chinese character takes two
    lines = [
        " " * (margin - cell_len(word)) + f"{word} │" + "".join(map(shade, row.tolist()))
        for word, row in zip(target, weights, strict=True)
    ]
    lines.append(" " * margin + " └" + "──" * len(source))
    for number in range(len(source) - 1, -1, -1):
        stems = "".join("│ " for _ in range(number))
        lines.append(" " * (margin + 2) + f"{stems}└ {source[number]}")
    return "\n".join(lines)


def shade(weight: float) -> str:
    """A weight as two characters, the darker the heavier."""
    return 2 * SHADES[min(4, int(5 * max(0.0, weight)))]
