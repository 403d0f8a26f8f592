"""Bar charts, curves, BLEU by sentence length, and predicted series against their references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Literal, NamedTuple

from regard.evaluate.translation_metrics import LengthGroup
from regard.plot.heatmap import hide_axes_frame, make_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MARKERS, DASHES = "osD^vPX*", ("-", "--", "-.", ":")  # distinguish lines without relying on colour


def plot_bars(
    values: Mapping[str, float],
    title: str,
    published: Mapping[str, float] | None = None,
    deviations: Mapping[str, float] | None = None,
) -> Figure:
    """Plot a horizontal bar for each system, the first at the top.

    Args:
        values: Score of each system.
        title: Title of the chart.
        published: Scores that papers report, drawn as diamonds.
        deviations: Standard deviations, drawn as error bars.
    """
    figure = make_figure(figsize=(6.4, 1.0 + 0.34 * len(values)), dpi=110)
    axes = figure.add_subplot()
    names = list(values)
    errors = [deviations.get(name, 0.0) for name in names] if deviations else None
    bars = axes.barh(range(len(names)), list(values.values()), color="tab:blue", height=0.6, xerr=errors, ecolor="0.25")
    axes.bar_label(bars, [f" {value:.4g}" for value in values.values()], fontsize="small", color="0.25")
    if published:
        x, y = list(published.values()), [names.index(name) for name in published]
        axes.plot(x, y, "D", color="0.15", markersize=6, markeredgecolor="white", label="paper", linestyle="none")
        axes.legend(frameon=False, fontsize="small", loc="lower right", bbox_to_anchor=(1.0, 1.0))
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_axisbelow(True)
    _style_chart(axes, title, grid_axis="x")
    return figure


def plot_curves(
    lines: Mapping[str, Sequence[Sequence[float | str]]],
    title: str,
    x_label: str,
    y_label: str,
    log_scale: bool = False,
) -> Figure:
    """Plot a line for each system through its points (x, y); x may be text, such as ranges, evenly spaced."""
    from matplotlib.ticker import LogLocator

    figure = make_figure(figsize=(6.4, 3.8), dpi=110)
    axes = figure.add_subplot()
    for (name, points), marker, dash in zip(lines.items(), cycle(MARKERS), cycle(DASHES), strict=False):
        x, y = ([point[axis] for point in points] for axis in (0, 1))
        axes.plot(x, y, marker=marker, linestyle=dash, label=name)
    if log_scale:
        axes.set_xscale("log")
        axes.set_yscale("log")
        ticks = sorted({point[0] for points in lines.values() for point in points})
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.legend(frameon=False, fontsize="small")
    _style_chart(axes, title)
    return figure


def plot_bleu_by_length(systems: Mapping[str, Sequence[LengthGroup]]) -> Figure:
    """Plot BLEU of each system by source length, with the number of pairs of each length group below."""
    lines = {
        name: [(f"{group.words}\n{group.pairs:,} pairs", group.bleu) for group in groups]
        for name, groups in systems.items()
    }
    figure = plot_curves(lines, "", "words of the source", "BLEU")
    figure.set_dpi(150)
    legend = figure.axes[0].get_legend()
    if legend is not None and len(systems) == 1:
        legend.remove()
    return figure


class PredictedSeries(NamedTuple):
    """Reference and prediction over the same time steps."""

    reference: Sequence[float]
    prediction: Sequence[float]


def plot_predicted_series(series: Sequence[PredictedSeries]) -> Figure:
    """Plot reference and prediction of each series, one panel below the other."""
    figure = make_figure(figsize=(7.2, 2.2 * len(series)), dpi=150)
    for axes, one in zip(figure.subplots(len(series), squeeze=False).flat, series, strict=True):
        axes.plot(one.reference, color="0.6", linewidth=3, label="reference")
        axes.plot(one.prediction, color="C0", linewidth=1.2, label="model")
        _style_chart(axes)
    axes.set_xlabel("time step")
    figure.axes[0].legend(frameon=False, ncols=2)
    return figure


def _style_chart(axes: Axes, title: str = "", grid_axis: Literal["x", "y"] = "y") -> None:
    """Hide the frame of a chart and show grid lines across the axis of values."""
    axes.grid(axis=grid_axis, color="0.9")
    axes.set_title(title, fontsize="medium", loc="left")
    hide_axes_frame(axes)
