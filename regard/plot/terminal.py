"""An alignment drawn with characters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SHADES = " ░▒▓█"


def drawing(weights: npt.NDArray[np.float32], source: Sequence[str], target: Sequence[str]) -> str:
    """A row for each target word, two columns for each source word, whose names stand below, on slanting lines."""
    margin = max((len(word) for word in target), default=0)
    lines = [
        f"{word:>{margin}} │" + "".join(2 * SHADES[min(4, int(5 * max(0.0, weight)))] for weight in row)
        for word, row in zip(target, weights, strict=True)
    ]
    lines.append(" " * margin + " └" + "──" * len(source))
    for number in range(len(source) - 1, -1, -1):
        stems = "".join("│ " for _ in range(number))
        lines.append(" " * (margin + 2) + f"{stems}└ {source[number]}")
    return "\n".join(lines)
