"""Several systems side by side: one figure of each, or a curve of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from regard.plot.canvas import canvas
from regard.plot.heatmap import bare, clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MARKERS, DASHES = "osD^vPX*", ("-", "--", "-.", ":")  # so that lines can be told apart without their colours


def bars(
    values: Mapping[str, float],
    title: str,
    published: Mapping[str, float] | None = None,
    deviations: Mapping[str, float] | None = None,
) -> Figure:
    """A bar for each system, the first above; a diamond where somebody has published another figure of it."""
    figure = canvas(figsize=(6.4, 1.0 + 0.34 * len(values)), layout="constrained", dpi=110)
    axes = figure.add_subplot()
    names = list(values)
    off = [(deviations or {}).get(name, 0.0) for name in names] if deviations else None
    drawn = axes.barh(range(len(names)), list(values.values()), color="tab:blue", height=0.6, xerr=off, ecolor="0.25")
    axes.bar_label(drawn, [f" {value:.4g}" for value in values.values()], fontsize="small", color="0.25")
    told = {names.index(name): value for name, value in (published or {}).items()}
    if told:
        x, y = list(told.values()), list(told)
        axes.plot(x, y, "D", color="0.15", markersize=6, markeredgecolor="white", label="paper", linestyle="none")
        axes.legend(frameon=False, fontsize="small", loc="lower right", bbox_to_anchor=(1.0, 1.0))
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
    from matplotlib.ticker import LogLocator

    figure = canvas(figsize=(6.4, 3.8), layout="constrained", dpi=110)
    axes = figure.add_subplot()
    for (name, points), marker, dash in zip(lines.items(), cycle(MARKERS), cycle(DASHES), strict=False):
        x, y = ([point[place] for point in points] for place in (0, 1))
        axes.plot(x, y, marker=marker, linestyle=dash, label=clean(name))
    if logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log")
        places = sorted({point[0] for points in lines.values() for point in points})
        axes.set_xticks(places, [f"{place:,}" for place in places])
        axes.minorticks_off()
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(axis="y", color="0.9")
    axes.set_title(clean(title), fontsize="medium", loc="left")
    axes.legend(frameon=False, fontsize="small")
    bare(axes)
    return figure
