"""Pictures of attention, of what depends on it, and of numbers over time."""

from regard.plot.animation import Step, animate
from regard.plot.comparison import bars, curves
from regard.plot.heatmap import heatmap, heatmaps, save, steps
from regard.plot.lengths import lengths
from regard.plot.overlay import Overlay, overlaid
from regard.plot.shaded import Line, shaded
from regard.plot.terminal import drawing
from regard.plot.tracks import Track, tracks

__all__ = [
    "Line",
    "Overlay",
    "Step",
    "Track",
    "animate",
    "bars",
    "curves",
    "drawing",
    "heatmap",
    "heatmaps",
    "lengths",
    "overlaid",
    "save",
    "shaded",
    "steps",
    "tracks",
]
