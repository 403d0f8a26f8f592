"""One decoding, step by step, as an animated picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from regard.plot.heatmap import Floats, escape_dollar_signs, hide_axes_frame, label_source_words
from regard.plot.matplotlib_figure import make_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class DecodingStep(NamedTuple):
    """What happened before one token was written."""

    token: str
    candidates: list[tuple[str, float]]  # the likeliest tokens with their probabilities
    weights: Floats | None = None  # over the source
    context: Floats | None = None  # what was seen there
    state: Floats | None = None  # what the decoder had in mind
    window: tuple[int, int] | None = None  # the first and the last place of the source that it looked for
    attentional: Floats | None = None  # what it made of both, where that is what decides the token


def write_decoding_animation(steps: Sequence[DecodingStep], source: Sequence[str], path: Path) -> None:
    """A GIF, one second a step: where the model looks, its state, the context, and which word comes next."""
    figure = make_figure(figsize=(max(6.0, 1.6 + 0.55 * len(source)), 5.2), layout="constrained", dpi=80)
    path.parent.mkdir(parents=True, exist_ok=True)
    from matplotlib.animation import PillowWriter

    writer = PillowWriter(fps=1)
    with writer.saving(figure, str(path), dpi=80):
        for number in range(len(steps)):
            _plot_frame(figure, steps[: number + 1], source)
            writer.grab_frame()


def _plot_frame(figure: Figure, steps_so_far: Sequence[DecodingStep], source: Sequence[str]) -> None:
    """The newest of the steps."""
    figure.clear()
    step = steps_so_far[-1]
    figure.suptitle(
        escape_dollar_signs(" ".join(one.token for one in steps_so_far)), ha="left", x=0.02, fontsize="large"
    )
    rows = figure.subplots(4, 1, height_ratios=(2.4, 0.5, 0.5, 2.2))
    _plot_source_weights(rows[0], step, source)
    _plot_vector(rows[1], step.state, "state")
    _plot_vector(rows[2], step.context, "context")
    _plot_candidates(rows[3], step)


def _plot_source_weights(axes: Axes, step: DecodingStep, source: Sequence[str]) -> None:
    """Bars over the source words."""
    if step.weights is not None:
        axes.bar(range(len(source)), step.weights, color="tab:blue")
    axes.set_ylim(0, 1)
    axes.set_xlim(-0.6, len(source) - 0.4)
    axes.set_ylabel("looks at")
    label_source_words(axes, source)
    axes.tick_params(length=0)
    hide_axes_frame(axes)


def _plot_vector(axes: Axes, vector: Floats | None, name: str) -> None:
    """A vector as a strip of colours."""
    if vector is not None:
        reach = max(float(abs(vector).max()), 1e-6)
        axes.imshow(vector[None], cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_ylabel(name if vector is not None else f"no {name}", rotation=0, ha="right", va="center")
    hide_axes_frame(axes)


def _plot_candidates(axes: Axes, step: DecodingStep) -> None:
    """The likeliest next words; the one that was written stands out."""
    words, chances = [word for word, _ in step.candidates], [chance for _, chance in step.candidates]
    colours = ["tab:orange" if word == step.token else "0.8" for word in words]
    axes.barh(range(len(words)), chances, color=colours)
    axes.set_yticks(range(len(words)), [escape_dollar_signs(word) for word in words])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("probability of the next word")
    axes.tick_params(length=0)
    hide_axes_frame(axes)
