"""Several systems side by side: one figure of each, or a curve of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from regard.plot.canvas import canvas
from regard.plot.heatmap import bare, clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def bars(values: Mapping[str, float], title: str, published: Mapping[str, float] | None = None) -> Figure:
    """A bar for each system, the first above; a diamond where somebody has published another figure of it."""
    figure = canvas(figsize=(6.4, 1.0 + 0.34 * len(values)), layout="constrained", dpi=110)
    axes = figure.add_subplot()
    names = list(values)
    axes.barh(range(len(names)), list(values.values()), color="tab:blue", height=0.6)
    told = {names.index(name): value for name, value in (published or {}).items()}
    if told:
        axes.plot(list(told.values()), list(told), "D", color="0.25", markersize=5, label="paper", linestyle="none")
        axes.legend(frameon=False)
    axes.set_yticks(range(len(names)), [clean(name) for name in names])
    axes.invert_yaxis()
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    axes.set_title(clean(title), fontsize="medium", loc="left")
    bare(axes)
    return figure


def curves(
    lines: Mapping[str, Sequence[Sequence[float | str]]], title: str, across: str, up: str, logarithmic: bool = False
) -> Figure:
    """A line for each system through its points (x, y); where x are words, such as ranges, they stand in a row."""
    figure = canvas(figsize=(6.4, 3.8), layout="constrained", dpi=110)
    axes = figure.add_subplot()
    for name, points in lines.items():
        axes.plot([point[0] for point in points], [point[1] for point in points], marker="o", label=clean(name))
    if logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log")
        places = sorted({point[0] for points in lines.values() for point in points})
        axes.set_xticks(places, [f"{place:,}" for place in places])
        axes.minorticks_off()
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(axis="y", color="0.9")
    axes.set_title(clean(title), fontsize="medium", loc="left")
    axes.legend(frameon=False, fontsize="small")
    bare(axes)
    return figure
