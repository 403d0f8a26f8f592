"""Numbers over time: what is right, and what a model gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from regard.plot.canvas import canvas
from regard.plot.heatmap import bare

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Track(NamedTuple):
    """Two curves over the same steps."""

    right: Sequence[float]
    made: Sequence[float]


def tracks(some: Sequence[Track]) -> Figure:
    """One below the other."""
    figure = canvas(figsize=(7.2, 2.2 * len(some)), layout="constrained", dpi=150)
    for number, one in enumerate(some, 1):
        axes = figure.add_subplot(len(some), 1, number)
        axes.plot(one.right, color="0.6", linewidth=3, label="right")
        axes.plot(one.made, color="C0", linewidth=1.2, label="model")
        axes.grid(axis="y", color="0.9")
        bare(axes)
    axes.set_xlabel("step of time")
    figure.axes[0].legend(frameon=False, ncols=2)
    return figure
