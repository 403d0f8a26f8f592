"""Weights over an image, word by word: a dark layer, the clearer where the model looked."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.plot.heatmap import Floats, escape_dollar_signs
from regard.plot.matplotlib_figure import make_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
if TYPE_CHECKING:
    from matplotlib.figure import Figure


WORDS_PER_ROW = 6  # words in a row
MAX_OPACITY = 0.8  # what the layer hides where nothing was looked at


class AttentionOverlay(NamedTuple):
    """Words, and of each the weights of the places of an image, or of a grid without one."""

    pixels: npt.NDArray[np.uint8] | None  # height × width × 3
    words: Sequence[str]
    weights: Floats  # words × rows × columns

    def compute_opacity(self, word: int) -> Floats:
        """How much of the image the layer hides at each place, where all was looked at nothing."""
        weights = self.weights[word]
        most = float(weights.max(initial=0.0))
        hidden: Floats = (MAX_OPACITY * (1 - weights / most if most > 0 else np.ones_like(weights))).astype(np.float32)
        return hidden

    def encode_png(self) -> bytes | None:
        """The image as a file."""
        if self.pixels is None:
            return None
        out = io.BytesIO()
        from matplotlib.image import imsave

        imsave(out, self.pixels, format="png")
        return out.getvalue()


def plot_attention_overlay(overlay: AttentionOverlay) -> Figure:
    """The image once for each word."""
    count = max(1, len(overlay.words))
    across, down = min(WORDS_PER_ROW, count), math.ceil(count / WORDS_PER_ROW)
    figure = make_figure(figsize=(1.5 * across, 1.75 * down), layout="constrained", dpi=120)
    for number, axes in enumerate(figure.subplots(down, across, squeeze=False).flat):
        axes.set_axis_off()
        if number < len(overlay.words):
            _plot_word_overlay(axes, overlay, number)
    return figure


def _plot_word_overlay(axes: Axes, overlay: AttentionOverlay, word: int) -> None:
    """One word with its look."""
    axes.set_title(escape_dollar_signs(overlay.words[word]), fontsize="small")
    rows, columns = overlay.weights.shape[1:]
    if overlay.pixels is None:
        axes.imshow(overlay.weights[word], cmap="Blues", vmin=0)
        return
    whole = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    axes.imshow(overlay.pixels, extent=whole, interpolation="nearest")
    layer = np.zeros((rows, columns, 4), dtype=np.float32)
    layer[..., 3] = overlay.compute_opacity(word)
    axes.imshow(layer, extent=whole, interpolation="nearest")


LINE_HEIGHT, LETTER_WIDTH, MARGIN = 0.3, 0.067, 0.15  # inches
MAX_LINE_LETTERS = 120  # letters, after which a line goes on below


class WeightedWords(NamedTuple):
    """A line of words with their weights; its label is shaded by a weight of its own, if it has one."""

    label: str
    words: Sequence[str]
    weights: Sequence[float]
    weight: float | None = None
    darkest_weight: float = 1.0  # the weight of a word that is as dark as can be: over a long text each has little

    def compute_darkness(self, weight: float) -> float:
        """How dark a word is, from 0 to 1."""
        return min(1.0, weight / self.darkest_weight) if self.darkest_weight > 0 else 0.0


def plot_weighted_words(lines: Sequence[WeightedWords]) -> Figure:
    """One line below the other, labels at the left; a long line goes on below."""
    rows = [row for line in lines for row in _wrap_line(line)]
    indent = MARGIN + LETTER_WIDTH * (2 + max(len(line.label) for line in lines))
    width = indent + MARGIN + LETTER_WIDTH * max(sum(map(_count_letters, row.words)) for row in rows)
    height = 2 * MARGIN + LINE_HEIGHT * len(rows)
    figure = make_figure(figsize=(width, height), dpi=150)
    for number, line in enumerate(rows):
        up = 1 - (MARGIN + LINE_HEIGHT * (number + 0.5)) / height
        _plot_word(figure, MARGIN / width, up, line.label, 0.0 if line.weight is None else line.weight)
        across = indent
        for word, weight in zip(line.words, line.weights, strict=True):
            _plot_word(figure, across / width, up, word, line.compute_darkness(weight))
            across += LETTER_WIDTH * _count_letters(word)
    return figure


def _wrap_line(line: WeightedWords) -> Iterator[WeightedWords]:
    """The line in parts that are not too wide; the label stands before the first."""
    start, width = 0, 0.0
    for place, word in enumerate(line.words):
        width += _count_letters(word)
        if width > MAX_LINE_LETTERS and place > start:
            yield _slice_line(line, start, place)
            start, width = place, _count_letters(word)
    yield _slice_line(line, start, len(line.words))


def _slice_line(line: WeightedWords, start: int, end: int) -> WeightedWords:
    """Some of its words."""
    some = line._replace(words=line.words[start:end], weights=line.weights[start:end])
    return some._replace(label="", weight=None) if start else some


def _count_letters(word: str) -> float:
    """The room that a word takes."""
    return len(word) + 1.5


def _plot_word(figure: Figure, x: float, y: float, word: str, darkness: float) -> None:
    """One word on its shade."""
    from matplotlib import colormaps

    shade = {"facecolor": colormaps["Blues"](darkness), "edgecolor": "none", "pad": 2.0}
    colour = "white" if darkness > 0.6 else "black"
    figure.text(x, y, escape_dollar_signs(word), family="monospace", fontsize=8, va="center", color=colour, bbox=shade)
