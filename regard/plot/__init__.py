"""Pictures of attention, and of what depends on it."""

from regard.plot.animation import Step, animate
from regard.plot.heatmap import heatmap, heatmaps, save, steps
from regard.plot.lengths import lengths
from regard.plot.terminal import drawing

__all__ = ["Step", "animate", "drawing", "heatmap", "heatmaps", "lengths", "save", "steps"]
