"""Weights over an image, word by word: a dark layer, the clearer where the model looked."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.plot.canvas import canvas
from regard.plot.heatmap import Floats, clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 6  # words in a row
DARK = 0.8  # what the layer hides where nothing was looked at


class Overlay(NamedTuple):
    """Words, and of each the weights of the places of an image, or of a grid without one."""

    pixels: npt.NDArray[np.uint8] | None  # height × width × 3
    words: Sequence[str]
    weights: Floats  # words × rows × columns

    def shade(self, word: int) -> Floats:
        """How much of the image the layer hides at each place, where all was looked at nothing."""
        weights = self.weights[word]
        most = float(weights.max(initial=0.0))
        hidden: Floats = (DARK * (1 - weights / most if most > 0 else np.ones_like(weights))).astype(np.float32)
        return hidden

    def png(self) -> bytes | None:
        """The image as a file."""
        if self.pixels is None:
            return None
        out = io.BytesIO()
        from matplotlib.image import imsave

        imsave(out, self.pixels, format="png")
        return out.getvalue()


def overlaid(overlay: Overlay) -> Figure:
    """The image once for each word."""
    count = max(1, len(overlay.words))
    across, down = min(ACROSS, count), math.ceil(count / ACROSS)
    figure = canvas(figsize=(1.5 * across, 1.75 * down), layout="constrained", dpi=120)
    for number, axes in enumerate(figure.subplots(down, across, squeeze=False).flat):
        axes.set_axis_off()
        if number < len(overlay.words):
            put(axes, overlay, number)
    return figure


def put(axes: Axes, overlay: Overlay, word: int) -> None:
    """One word with its look."""
    axes.set_title(clean(overlay.words[word]), fontsize="small")
    rows, columns = overlay.weights.shape[1:]
    if overlay.pixels is None:
        axes.imshow(overlay.weights[word], cmap="Blues", vmin=0)
        return
    whole = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    axes.imshow(overlay.pixels, extent=whole, interpolation="nearest")
    layer = np.zeros((rows, columns, 4), dtype=np.float32)
    layer[..., 3] = overlay.shade(word)
    axes.imshow(layer, extent=whole, interpolation="nearest")
