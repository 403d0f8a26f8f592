"""Pictures of attention."""

from regard.plot.heatmap import heatmap, save
from regard.plot.terminal import drawing

__all__ = ["drawing", "heatmap", "save"]
