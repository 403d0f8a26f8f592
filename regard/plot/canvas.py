"""An empty picture. matplotlib is imported when the first is made: most commands make none, and it takes its time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def canvas(figsize: tuple[float, float], dpi: int, layout: Literal["constrained"] | None = None) -> Figure:
    """Width and height in inches."""
    from matplotlib import figure

    return figure.Figure(figsize=figsize, dpi=dpi, layout=layout)
