"""Animated GIF of decoding, one frame per output token: attention, decoder state, context, candidates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from regard.plot.heatmap import Floats, hide_axes_frame, label_source_words, plot_weight_bars
from regard.plot.matplotlib_figure import make_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class DecodingStep(NamedTuple):
    """Decoder internals at one output token."""

    token: str
    candidates: list[tuple[str, float]]  # most probable tokens with their probabilities
    weights: Floats | None = None  # attention over the source positions, (S,)
    context: Floats | None = None  # context vector
    state: Floats | None = None  # decoder hidden state
    window: tuple[int, int] | None = None  # first and last source position of a local attention window
    attentional: Floats | None = None  # attentional hidden state (Luong et al., 2015), if the model has one


def write_decoding_animation(steps: Sequence[DecodingStep], source: Sequence[str], path: Path) -> None:
    """Write a GIF with one frame a second: attention weights, state, context and candidates of each step."""
    figure = make_figure(figsize=(max(6.0, 1.6 + 0.55 * len(source)), 5.2), layout="constrained", dpi=80)
    path.parent.mkdir(parents=True, exist_ok=True)
    from matplotlib.animation import PillowWriter

    writer = PillowWriter(fps=1)
    with writer.saving(figure, str(path), dpi=80):
        for number in range(len(steps)):
            _plot_frame(figure, steps[: number + 1], source)
            writer.grab_frame()


def _plot_frame(figure: Figure, steps_so_far: Sequence[DecodingStep], source: Sequence[str]) -> None:
    """Plot the last of the given steps, below the tokens written so far."""
    figure.clear()
    step = steps_so_far[-1]
    figure.suptitle(" ".join(one.token for one in steps_so_far), ha="left", x=0.02, fontsize="large")
    rows = figure.subplots(4, 1, height_ratios=(2.4, 0.5, 0.5, 2.2))
    plot_weight_bars(rows[0], step.weights, len(source))
    rows[0].set_ylabel("attention")
    label_source_words(rows[0], source)
    _plot_vector(rows[1], step.state, "state")
    _plot_vector(rows[2], step.context, "context")
    _plot_candidates(rows[3], step)


def _plot_vector(axes: Axes, vector: Floats | None, name: str) -> None:
    """Plot a vector as a strip of colours."""
    if vector is not None:
        limit = max(float(abs(vector).max()), 1e-6)
        axes.imshow(vector[None], cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_ylabel(name if vector is not None else f"no {name}", rotation=0, ha="right", va="center")
    hide_axes_frame(axes)


def _plot_candidates(axes: Axes, step: DecodingStep) -> None:
    """Plot the most probable next words as bars; highlight the chosen one."""
    words, probabilities = [word for word, _ in step.candidates], [probability for _, probability in step.candidates]
    colours = ["tab:orange" if word == step.token else "0.8" for word in words]
    axes.barh(range(len(words)), probabilities, color=colours)
    axes.set_yticks(range(len(words)), words)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("probability of the next word")
    axes.tick_params(length=0)
    hide_axes_frame(axes)
