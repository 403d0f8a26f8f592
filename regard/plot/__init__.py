"""Pictures of attention, and of what depends on it."""

from regard.plot.animation import Step, animate
from regard.plot.heatmap import heatmap, heatmaps, save, steps
from regard.plot.lengths import lengths
from regard.plot.overlay import Overlay, overlaid
from regard.plot.shaded import Line, shaded
from regard.plot.terminal import drawing

__all__ = [
    "Line",
    "Overlay",
    "Step",
    "animate",
    "drawing",
    "heatmap",
    "heatmaps",
    "lengths",
    "overlaid",
    "save",
    "shaded",
    "steps",
]
