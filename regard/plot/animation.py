"""One decoding, step by step, as an animated picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from regard.plot.canvas import canvas
from regard.plot.heatmap import Floats, bare, clean, words_across

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Step(NamedTuple):
    """What happened before one token was written."""

    token: str
    candidates: list[tuple[str, float]]  # the likeliest tokens with their probabilities
    weights: Floats | None = None  # over the source
    context: Floats | None = None  # what was seen there
    state: Floats | None = None  # what the decoder had in mind
    window: tuple[int, int] | None = None  # the first and the last place of the source that it looked for
    attentional: Floats | None = None  # what it made of both, where that is what decides the token


def animate(steps: Sequence[Step], source: Sequence[str], path: Path) -> None:
    """A GIF, one second a step: where the model looks, its state, the context, and which word comes next."""
    figure = canvas(figsize=(max(6.0, 1.6 + 0.55 * len(source)), 5.2), layout="constrained", dpi=80)
    path.parent.mkdir(parents=True, exist_ok=True)
    from matplotlib.animation import PillowWriter

    writer = PillowWriter(fps=1)
    with writer.saving(figure, str(path), dpi=80):
        for number in range(len(steps)):
            frame(figure, steps[: number + 1], source)
            writer.grab_frame()


def frame(figure: Figure, so_far: Sequence[Step], source: Sequence[str]) -> None:
    """The newest of the steps."""
    figure.clear()
    step = so_far[-1]
    figure.suptitle(clean(" ".join(one.token for one in so_far)), ha="left", x=0.02, fontsize="large")
    rows = figure.subplots(4, 1, height_ratios=(2.4, 0.5, 0.5, 2.2))
    looked(rows[0], step, source)
    strip(rows[1], step.state, "state")
    strip(rows[2], step.context, "context")
    guesses(rows[3], step)


def looked(axes: Axes, step: Step, source: Sequence[str]) -> None:
    """Bars over the source words."""
    if step.weights is not None:
        axes.bar(range(len(source)), step.weights, color="tab:blue")
    axes.set_ylim(0, 1)
    axes.set_xlim(-0.6, len(source) - 0.4)
    axes.set_ylabel("looks at")
    words_across(axes, source)
    axes.tick_params(length=0)
    bare(axes)


def strip(axes: Axes, vector: Floats | None, name: str) -> None:
    """A vector as a strip of colours."""
    if vector is not None:
        reach = max(float(abs(vector).max()), 1e-6)
        axes.imshow(vector[None], cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_ylabel(name if vector is not None else f"no {name}", rotation=0, ha="right", va="center")
    bare(axes)


def guesses(axes: Axes, step: Step) -> None:
    """The likeliest next words; the one that was written stands out."""
    words, chances = [word for word, _ in step.candidates], [chance for _, chance in step.candidates]
    colours = ["tab:orange" if word == step.token else "0.8" for word in words]
    axes.barh(range(len(words)), chances, color=colours)
    axes.set_yticks(range(len(words)), [clean(word) for word in words])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("probability of the next word")
    axes.tick_params(length=0)
    bare(axes)
