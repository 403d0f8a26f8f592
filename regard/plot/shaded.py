"""Words in running text, each the darker the more it was looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib import colormaps
from matplotlib.figure import Figure

from regard.plot.heatmap import clean

LINE, LETTER, MARGIN = 0.3, 0.067, 0.15  # inches


class Line(NamedTuple):
    """A line of words with their weights; its label is shaded by a weight of its own, if it has one."""

    label: str
    words: Sequence[str]
    weights: Sequence[float]
    weight: float | None = None


def shaded(lines: Sequence[Line]) -> Figure:
    """One line below the other, labels at the left."""
    indent = MARGIN + LETTER * (2 + max(len(line.label) for line in lines))
    width = indent + MARGIN + max(sum(LETTER * (len(word) + 1.5) for word in line.words) for line in lines)
    height = 2 * MARGIN + LINE * len(lines)
    figure = Figure(figsize=(width, height), dpi=150)
    for number, line in enumerate(lines):
        up = 1 - (MARGIN + LINE * (number + 0.5)) / height
        put(figure, MARGIN / width, up, line.label, 0.0 if line.weight is None else line.weight)
        across = indent
        for word, weight in zip(line.words, line.weights, strict=True):
            put(figure, across / width, up, word, weight)
            across += LETTER * (len(word) + 1.5)
    return figure


def put(figure: Figure, x: float, y: float, word: str, weight: float) -> None:
    """One word on its shade."""
    shade = {"facecolor": colormaps["Blues"](weight), "edgecolor": "none", "pad": 2.0}
    colour = "white" if weight > 0.6 else "black"
    figure.text(x, y, clean(word), family="monospace", fontsize=8, va="center", color=colour, bbox=shade)
