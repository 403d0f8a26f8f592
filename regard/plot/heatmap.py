"""Attention heat maps: one matrix, all heads side by side, decoding steps as bars, and text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len

from regard.errors import UserError
from regard.plot.matplotlib_figure import make_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


Floats = npt.NDArray[np.float32]


def plot_heatmap(attention: Floats, source: Sequence[str], target: Sequence[str], title: str = "") -> Figure:
    """Plot an attention matrix (T, S): target words down, source words across, dark cells for high weights."""
    width, height = 1.8 + 0.42 * len(source), 1.6 + 0.36 * len(target)
    figure = make_figure(figsize=(width, height), layout="constrained", dpi=150)
    axes = figure.add_subplot()
    image = _plot_matrix(axes, attention, source, target)
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize="small", length=0)
    if title:
        figure.suptitle(title, fontsize="medium")
    return figure


def plot_heatmaps(
    attentions: Mapping[str, Floats], source: Sequence[str], target: Sequence[str], columns: int | None = None
) -> Figure:
    """Plot several attention matrices of one sentence side by side, such as those of all heads, with their names."""
    across = columns or math.ceil(math.sqrt(len(attentions)))
    down = -(-len(attentions) // across)
    size = across * (1.4 + 0.3 * len(source)), down * (1.4 + 0.26 * len(target))
    figure = make_figure(figsize=size, layout="constrained", dpi=100)
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(attentions) :]:
        axes.set_axis_off()
    for axes, (name, attention) in zip(grid.flat, attentions.items(), strict=False):
        _plot_matrix(axes, attention, source, target)
        axes.set_xlabel(name, fontsize="medium")
    return figure


def _plot_matrix(axes: Axes, attention: Floats, source: Sequence[str], target: Sequence[str]) -> AxesImage:
    image = axes.imshow(attention, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    label_source_words(axes, source)
    axes.set_yticks(range(len(target)), target)
    axes.set_xticks(np.arange(len(source) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(target) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="both", length=0)
    hide_axes_frame(axes)
    return image


def plot_decoding_steps(attention: Floats, source: Sequence[str], target: Sequence[str]) -> Figure:
    """Plot each decoding step as a row of bars: the attention weights over the source words."""
    size = 2.0 + 0.42 * len(source), 1.2 + 0.5 * len(target)
    figure = make_figure(figsize=size, layout="constrained", dpi=150)
    rows = figure.subplots(len(target), 1, squeeze=False)[:, 0]
    for step, (axes, weights, word) in enumerate(zip(rows, attention, target, strict=True)):
        plot_weight_bars(axes, weights, len(source))
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_ylabel(word, rotation=0, ha="right", va="center")
        axes.spines["bottom"].set_visible(True)
        if step == 0:
            label_source_words(axes, source)
    return figure


def plot_weight_bars(axes: Axes, weights: Floats | None, count: int) -> None:
    """Plot attention weights over `count` source words as bars; leave the plot empty without weights."""
    if weights is not None:
        axes.bar(range(count), weights, color="tab:blue")
    axes.set_ylim(0, 1)
    axes.set_xlim(-0.6, count - 0.4)
    axes.tick_params(length=0)
    hide_axes_frame(axes)


def label_source_words(axes: Axes, words: Sequence[str]) -> None:
    """Label the x axis above the plot with words, slanted so that they do not overlap."""
    axes.set_xticks(range(len(words)), words, rotation=45, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()


def hide_axes_frame(axes: Axes) -> None:
    """Hide the frame of a plot."""
    axes.spines[:].set_visible(False)


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the image format of the file name's extension."""
    known = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise UserError(
            f"{path}: unknown image format; the name must end in {', '.join('.' + name for name in sorted(known))}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


SHADE_CHARACTERS = " ░▒▓█"


def format_alignment_matrix(weights: npt.NDArray[np.float32], source: Sequence[str], target: Sequence[str]) -> str:
    """Format an attention matrix (T, S) as text: target words at the left, source words below, weights as shades."""
    margin = max(map(cell_len, target), default=0)  # in terminal columns: a Chinese character takes two
    lines = [
        " " * (margin - cell_len(word)) + f"{word} │" + "".join(map(_format_shaded_cell, row.tolist()))
        for word, row in zip(target, weights, strict=True)
    ]
    lines.append(" " * margin + " └" + "──" * len(source))
    for number in range(len(source) - 1, -1, -1):
        stems = "".join("│ " for _ in range(number))
        lines.append(" " * (margin + 2) + f"{stems}└ {source[number]}")
    return "\n".join(lines)


def _format_shaded_cell(weight: float) -> str:
    """Return a weight as two shaded characters."""
    return 2 * SHADE_CHARACTERS[min(4, int(5 * max(0.0, weight)))]
