"""Draw `images/speed.svg` from `results/speed.json`: how many times as fast as the fastest peer regard is on a CPU.

python docs/speed_chart.py
"""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
from examples import GREY, IMAGES, STYLE
from tables import list_entries

from regard.plot.heatmap import hide_axes_frame, make_figure

COLOURS = {"fastest": "#2f6fd0", "regard": "#8fb4ea"}
LABELS = {"fastest": "fastest setting", "regard": "nothing set"}
BAR = 0.36


def list_ratios() -> list[dict[str, Any]]:
    """Return the comparisons on a CPU, with regard's speed relative to the peer's, None where it was not measured."""
    entries = list_entries("speed", "current")
    rows = [{**entry, **{key: (entry.get(key) or {}).get("ratio") for key in COLOURS}} for entry in entries]
    return [row for row in rows if "core" in row["machine"] and row["fastest"] is not None]


def draw() -> None:
    """Draw two bars for each comparison, and a line at the speed of the peer."""
    rows = list_ratios()
    with mpl.rc_context({**STYLE, "font.size": 9}):
        figure = make_figure((8.0, 0.8 + 0.46 * len(rows)), dpi=72)
        axes = figure.add_subplot()
        for offset, (key, colour) in zip((-BAR / 2, BAR / 2), COLOURS.items(), strict=True):
            known = [(index + offset, row[key]) for index, row in enumerate(rows) if row[key] is not None]
            places, ratios = zip(*known, strict=True)
            bars = axes.barh(places, ratios, color=colour, height=BAR, label=LABELS[key])
            axes.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], padding=3, color=GREY, fontsize="small")
        axes.axvline(1, color="#c2570c", linewidth=1.4, linestyle="--", label="peer")
        axes.set_yticks(range(len(rows)), [f"{row['task']}\n{row['machine']}, beside {row['peer']}" for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel("times the peer's target tokens a second")
        axes.margins(x=0.08)
        axes.grid(axis="x", color=GREY, alpha=0.25)
        axes.set_axisbelow(True)
        axes.tick_params(length=0)
        axes.legend(frameon=False, loc="lower right")
        hide_axes_frame(axes)
        figure.savefig(IMAGES / "speed.svg", metadata={"Date": None})


if __name__ == "__main__":
    draw()
