"""BLEU by the length of the source, one line a system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from regard.evaluate import Group
from regard.plot.canvas import canvas
from regard.plot.heatmap import bare, clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def lengths(systems: Mapping[str, Sequence[Group]]) -> Figure:
    """Each system's groups, all of the same test set, from short to long; below each, how many sentences it has."""
    figure = canvas(figsize=(6.4, 3.8), layout="constrained", dpi=150)
    axes = figure.add_subplot()
    for name, groups in systems.items():
        axes.plot(range(len(groups)), [group.bleu for group in groups], marker="o", label=clean(name))
    first = next(iter(systems.values()))
    axes.set_xticks(range(len(first)), [f"{group.words}\n{group.pairs:,} pairs" for group in first])
    axes.set_xlabel("words of the source")
    axes.set_ylabel("BLEU")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="0.9")
    bare(axes)
    if len(systems) > 1:
        axes.legend(frameon=False)
    return figure
