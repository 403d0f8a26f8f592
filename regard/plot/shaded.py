"""Words in running text, each the darker the more it was looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from regard.plot.canvas import canvas
from regard.plot.heatmap import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINE, LETTER, MARGIN = 0.3, 0.067, 0.15  # inches
WIDE = 120  # letters, after which a line goes on below


class Line(NamedTuple):
    """A line of words with their weights; its label is shaded by a weight of its own, if it has one."""

    label: str
    words: Sequence[str]
    weights: Sequence[float]
    weight: float | None = None
    darkest: float = 1.0  # the weight of a word that is as dark as can be: over a long text each has little

    def shade(self, weight: float) -> float:
        """How dark a word is, from 0 to 1."""
        return min(1.0, weight / self.darkest) if self.darkest > 0 else 0.0


def shaded(lines: Sequence[Line]) -> Figure:
    """One line below the other, labels at the left; a long line goes on below."""
    rows = [row for line in lines for row in wrapped(line)]
    indent = MARGIN + LETTER * (2 + max(len(line.label) for line in lines))
    width = indent + MARGIN + LETTER * max(sum(map(letters, row.words)) for row in rows)
    height = 2 * MARGIN + LINE * len(rows)
    figure = canvas(figsize=(width, height), dpi=150)
    for number, line in enumerate(rows):
        up = 1 - (MARGIN + LINE * (number + 0.5)) / height
        put(figure, MARGIN / width, up, line.label, 0.0 if line.weight is None else line.weight)
        across = indent
        for word, weight in zip(line.words, line.weights, strict=True):
            put(figure, across / width, up, word, line.shade(weight))
            across += LETTER * letters(word)
    return figure


def wrapped(line: Line) -> Iterator[Line]:
    """The line in parts that are not too wide; the label stands before the first."""
    start, width = 0, 0.0
    for place, word in enumerate(line.words):
        width += letters(word)
        if width > WIDE and place > start:
            yield part(line, start, place)
            start, width = place, letters(word)
    yield part(line, start, len(line.words))


def part(line: Line, start: int, end: int) -> Line:
    """Some of its words."""
    some = line._replace(words=line.words[start:end], weights=line.weights[start:end])
    return some._replace(label="", weight=None) if start else some


def letters(word: str) -> float:
    """The room that a word takes."""
    return len(word) + 1.5


def put(figure: Figure, x: float, y: float, word: str, weight: float) -> None:
    """One word on its shade."""
    from matplotlib import colormaps

    shade = {"facecolor": colormaps["Blues"](weight), "edgecolor": "none", "pad": 2.0}
    colour = "white" if weight > 0.6 else "black"
    figure.text(x, y, clean(word), family="monospace", fontsize=8, va="center", color=colour, bbox=shade)
