"""Attention weights over an image, one panel per word, and attention weights over lines of words."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len

from regard.data.languages import is_right_to_left
from regard.plot.heatmap import Floats, make_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WORDS_PER_ROW = 6
MAX_OPACITY = 0.8  # of the dark layer where the attention weight is 0


class AttentionOverlay(NamedTuple):
    """Attention weights of each word over the cells of an image or feature grid."""

    pixels: npt.NDArray[np.uint8] | None  # (height, width, 3); None for features without an image
    words: Sequence[str]
    weights: Floats  # (words, rows, columns)

    def compute_opacity(self, word: int) -> Floats:
        """Return the opacity of the dark layer in each cell, (rows, columns): 0 at the highest weight of the word."""
        weights = self.weights[word]
        highest = max(float(weights.max(initial=0.0)), np.finfo(np.float32).tiny)
        opacity: Floats = (MAX_OPACITY * (1 - weights / highest)).astype(np.float32)
        return opacity

    def encode_png(self) -> bytes | None:
        """Return the image as PNG; None if there are no pixels."""
        if self.pixels is None:
            return None
        out = io.BytesIO()
        from matplotlib.image import imsave

        imsave(out, self.pixels, format="png")
        return out.getvalue()


def plot_attention_overlay(overlay: AttentionOverlay) -> Figure:
    """Plot the image once for each word, darkened where the attention weight is low, in the words' direction."""
    count = max(1, len(overlay.words))
    across, down = min(WORDS_PER_ROW, count), math.ceil(count / WORDS_PER_ROW)
    figure = make_figure(figsize=(1.5 * across, 1.75 * down), dpi=120)
    direction = -1 if is_right_to_left("".join(overlay.words)) else 1
    for word, axes in enumerate(figure.subplots(down, across, squeeze=False)[:, ::direction].flat):
        axes.set_axis_off()
        if word < len(overlay.words):
            _plot_word_overlay(axes, overlay, word)
    return figure


def _plot_word_overlay(axes: Axes, overlay: AttentionOverlay, word: int) -> None:
    axes.set_title(overlay.words[word], fontsize="small")
    rows, columns = overlay.weights.shape[1:]
    if overlay.pixels is None:
        axes.imshow(overlay.weights[word], cmap="Blues", vmin=0)
        return
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    axes.imshow(overlay.pixels, extent=extent, interpolation="nearest")
    layer = np.zeros((rows, columns, 4), dtype=np.float32)
    layer[..., 3] = overlay.compute_opacity(word)
    axes.imshow(layer, extent=extent, interpolation="nearest")


LINE_HEIGHT, LETTER_WIDTH, MARGIN = 0.3, 0.067, 0.15  # inches
MAX_LINE_LETTERS = 120  # longer lines are wrapped


class WeightedWords(NamedTuple):
    """A labelled line of words with attention weights; the line itself may have a weight, too."""

    label: str
    words: Sequence[str]
    weights: Sequence[float]
    weight: float | None = None
    darkest_weight: float = 1.0  # weight that is shown darkest; smaller for long texts, where each word has little

    def compute_darkness(self, weight: float) -> float:
        """Return the shade of a word, from 0 to 1."""
        return min(1.0, weight / self.darkest_weight) if self.darkest_weight > 0 else 0.0


def plot_weighted_words(lines: Sequence[WeightedWords]) -> Figure:
    """Plot lines of words, each shaded by its attention weight; wrap long lines.

    Labels are at the left, and words run on from there; lines of Arabic or Hebrew begin at the right.
    """
    rows = [row for line in lines for row in _wrap_line(line)]
    indent = MARGIN + LETTER_WIDTH * (2 + max(cell_len(line.label) for line in lines))
    width = indent + MARGIN + LETTER_WIDTH * max(sum(map(_count_letters, row.words)) for row in rows)
    height = 2 * MARGIN + LINE_HEIGHT * len(rows)
    figure = make_figure(figsize=(width, height), dpi=150, layout=None)
    for number, line in enumerate(rows):
        y = 1 - (MARGIN + LINE_HEIGHT * (number + 0.5)) / height
        _plot_word(figure, MARGIN / width, y, line.label, 0.0 if line.weight is None else line.weight)
        x = indent
        is_reversed = is_right_to_left("".join(line.words))
        for word, weight in zip(line.words, line.weights, strict=True):
            word_x = (width + indent - MARGIN - x) / width if is_reversed else x / width
            _plot_word(figure, word_x, y, word, line.compute_darkness(weight), "right" if is_reversed else "left")
            x += LETTER_WIDTH * _count_letters(word)
    return figure


def _wrap_line(line: WeightedWords) -> Iterator[WeightedWords]:
    """Yield parts of a line that fit the width; only the first keeps the label."""
    start, width = 0, 0.0
    for index, word in enumerate(line.words):
        width += _count_letters(word)
        if width > MAX_LINE_LETTERS and index > start:
            yield _slice_line(line, start, index)
            start, width = index, _count_letters(word)
    yield _slice_line(line, start, len(line.words))


def _slice_line(line: WeightedWords, start: int, end: int) -> WeightedWords:
    """Return some words of a line; drop label and line weight unless they are the first."""
    part = line._replace(words=line.words[start:end], weights=line.weights[start:end])
    return part._replace(label="", weight=None) if start else part


def _count_letters(word: str) -> float:
    """Return the width of a word in letters, including the gap; a Chinese character takes two."""
    return cell_len(word) + 1.5


def _plot_word(
    figure: Figure, x: float, y: float, word: str, darkness: float, side: Literal["left", "right"] = "left"
) -> None:
    from matplotlib import colormaps

    shade = {"facecolor": colormaps["Blues"](darkness), "edgecolor": "none", "pad": 2.0}
    colour = "white" if darkness > 0.6 else "black"
    figure.text(x, y, word, family="monospace", fontsize=8, va="center", ha=side, color=colour, bbox=shade)
