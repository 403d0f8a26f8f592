"""An attention matrix as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from regard.errors import UserError


def heatmap(
    attention: npt.NDArray[np.float32], source: Sequence[str], target: Sequence[str], title: str = ""
) -> Figure:
    """Target words down, source words across; the darker, the more weight."""
    width, height = 1.8 + 0.42 * len(source), 1.6 + 0.36 * len(target)
    figure = Figure(figsize=(width, height), layout="constrained", dpi=150)
    axes = figure.add_subplot()
    image = axes.imshow(attention, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(
        range(len(source)), [clean(word) for word in source], rotation=45, ha="left", rotation_mode="anchor"
    )
    axes.set_yticks(range(len(target)), [clean(word) for word in target])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xticks(np.arange(len(source) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(target) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize="small", length=0)
    if title:
        figure.suptitle(clean(title), fontsize="medium")
    return figure


def clean(text: str) -> str:
    """Text as it is: a dollar sign is no formula."""
    return text.replace("$", r"\$")


def save(figure: Figure, path: Path) -> None:
    """Writes the picture in the format that the name asks for."""
    known = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise UserError(f"{path}: a picture's name ends in one of {', '.join('.' + name for name in sorted(known))}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
