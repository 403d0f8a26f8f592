"""Attention heat maps: one matrix, all heads side by side, as text, and decoding step by step, as bars or animated.

Figures of all plots fall back to other fonts for scripts that the default font lacks. Importing matplotlib is slow, so
it happens on first use.
"""

from __future__ import annotations

import math
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len

from regard.console import log_message
from regard.data.languages import is_right_to_left
from regard.errors import UserError
from regard.tokenizers.words import JOINER, SPACER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontEntry
    from matplotlib.image import AxesImage


Floats = npt.NDArray[np.float32]


def plot_heatmap(
    attention: Floats,
    source: Sequence[str],
    target: Sequence[str],
    title: str = "",
    steps: Sequence[DecodingStep] = (),
) -> Figure:
    """Plot an attention matrix (T, S): target words down, source words across, dark cells for high weights.

    Source words run in the direction of their script, from right to left for Arabic and Hebrew. With the decoding
    steps of local attention, each row has the border of its window, and its Gaussian as a curve.
    """
    width, height = 1.8 + 0.42 * len(source), 1.6 + 0.36 * len(target)
    figure = make_figure(figsize=(width, height), dpi=150)
    axes = figure.add_subplot()
    image = _plot_matrix(axes, attention, source, target)
    for row, step in enumerate(steps):
        _plot_window(axes, row, step)
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize="small", length=0)
    if title:
        figure.suptitle(title, fontsize="medium")
    return figure


def plot_heatmaps(attentions: Mapping[str, Floats], source: Sequence[str], target: Sequence[str]) -> Figure:
    """Plot several attention matrices of one sentence side by side, such as those of all heads, with their names."""
    across = math.ceil(math.sqrt(len(attentions)))
    down = math.ceil(len(attentions) / across)
    size = across * (1.4 + 0.3 * len(source)), down * (1.4 + 0.26 * len(target))
    figure = make_figure(figsize=size, dpi=100)
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(attentions) :]:
        axes.set_axis_off()
    for axes, (name, attention) in zip(grid.flat, attentions.items(), strict=False):
        _plot_matrix(axes, attention, source, target)
        axes.set_xlabel(name, fontsize="medium")
    return figure


def _plot_matrix(axes: Axes, attention: Floats, source: Sequence[str], target: Sequence[str]) -> AxesImage:
    image = axes.imshow(attention, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    label_source_words(axes, source)
    axes.set_yticks(range(len(target)), format_tokens(target))
    axes.set_xticks(np.arange(len(source) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(target) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="both", length=0)
    hide_axes_frame(axes)
    return image


def _plot_window(axes: Axes, row: int, step: DecodingStep) -> None:
    """Plot the border of a step's window, and its Gaussian as a curve with a tick at its centre."""
    if step.window is None:
        return
    from matplotlib.patches import Rectangle

    first, last = step.window
    size = (last - first + 0.92, 0.92)
    axes.add_patch(
        Rectangle((first - 0.46, row - 0.46), *size, fill=False, edgecolor="tab:orange", linewidth=1.5, zorder=3)
    )
    if step.gaussian is not None:
        centre, sigma = step.gaussian
        x = np.linspace(first - 0.46, last + 0.46, 60)
        curve = row + 0.42 - 0.8 * np.exp(-((x - centre) ** 2) / (2 * sigma**2))
        axes.plot(x, curve, color="tab:orange", linewidth=1.2, zorder=3)
        axes.plot([centre, centre], [row + 0.2, row + 0.42], color="tab:red", linewidth=2, zorder=3)


def plot_decoding_steps(attention: Floats, source: Sequence[str], target: Sequence[str]) -> Figure:
    """Plot each decoding step as a row of bars: the attention weights over the source words."""
    size = 2.0 + 0.42 * len(source), 1.2 + 0.5 * len(target)
    figure = make_figure(figsize=size, dpi=150)
    rows = figure.subplots(len(target), 1, squeeze=False)[:, 0]
    for step, (axes, weights, word) in enumerate(zip(rows, attention, format_tokens(target), strict=True)):
        plot_weight_bars(axes, weights, source)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_ylabel(word, rotation=0, ha="right", va="center")
        axes.spines["bottom"].set_visible(True)
        if step == 0:
            label_source_words(axes, source)
    return figure


def plot_weight_bars(axes: Axes, weights: Floats | None, source: Sequence[str]) -> None:
    """Plot attention weights over source words as bars; leave the plot empty without weights."""
    if weights is not None:
        axes.bar(range(len(source)), weights, color="tab:blue")
    axes.set_ylim(0, 1)
    axes.set_xlim(-0.6, len(source) - 0.4)
    axes.xaxis.set_inverted(is_right_to_left("".join(source)))
    axes.tick_params(length=0)
    hide_axes_frame(axes)


def format_tokens(tokens: Iterable[str]) -> list[str]:
    """Return tokens as pictures label them: punctuation marks without joiners and spacers, `␣.` as `.`."""
    return [token.strip(JOINER + SPACER) or token for token in tokens]


def label_source_words(axes: Axes, words: Sequence[str]) -> None:
    """Label the x axis above the plot with words, slanted so that they do not overlap, in their direction."""
    is_reversed = is_right_to_left("".join(words))
    rotation, side = (-45, "right") if is_reversed else (45, "left")
    axes.set_xticks(range(len(words)), format_tokens(words), rotation=rotation, ha=side, rotation_mode="anchor")
    axes.xaxis.set_inverted(is_reversed)
    axes.xaxis.tick_top()


def hide_axes_frame(axes: Axes) -> None:
    """Hide the frame of a plot."""
    axes.spines[:].set_visible(False)


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the image format of the file name's extension."""
    known = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise UserError(
            f"{path}: unknown image format; the name must end in {', '.join('.' + name for name in sorted(known))}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


SHADE_CHARACTERS = " ░▒▓█"


def format_alignment_matrix(weights: npt.NDArray[np.float32], source: Sequence[str], target: Sequence[str]) -> str:
    """Format an attention matrix (T, S) as text: target words at the left, source words below, weights as shades."""
    margin = max(map(cell_len, target), default=0)  # in terminal columns: a Chinese character takes two
    lines = [
        " " * (margin - cell_len(word)) + f"{_isolate(word)} │" + "".join(map(_format_shaded_cell, row.tolist()))
        for word, row in zip(target, weights, strict=True)
    ]
    lines.append(" " * margin + " └" + "──" * len(source))
    for number in range(len(source) - 1, -1, -1):
        lines.append(" " * (margin + 2) + "│ " * number + f"└ {_isolate(source[number])}")
    return "\n".join(lines)


def _isolate(word: str) -> str:
    """Put a word from right to left between invisible signs, so that a terminal does not reverse the line around it."""
    return f"\u2068{word}\u2069" if is_right_to_left(word) else word


def _format_shaded_cell(weight: float) -> str:
    """Return a weight as two shaded characters."""
    return 2 * SHADE_CHARACTERS[min(4, int(5 * max(0.0, weight)))]


class DecodingStep(NamedTuple):
    """Decoder internals at one output token."""

    token: str
    candidates: list[tuple[str, float]]  # most probable tokens with their probabilities
    weights: Floats | None = None  # attention over the source positions, (S,)
    context: Floats | None = None  # context vector
    state: Floats | None = None  # decoder hidden state
    window: tuple[int, int] | None = None  # first and last source position of a local attention window
    attentional: Floats | None = None  # attentional hidden state (Luong et al., 2015), if the model has one
    gaussian: tuple[float, float] | None = None  # centre p_t and standard deviation of local-p attention


def write_decoding_animation(steps: Sequence[DecodingStep], source: Sequence[str], path: Path) -> None:
    """Write a GIF with one frame a second: attention weights, state, context and candidates of each step."""
    figure = make_figure(figsize=(max(6.0, 1.6 + 0.55 * len(source)), 5.2), dpi=80)
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
    title = " ".join(format_tokens(one.token for one in steps_so_far))
    is_reversed = is_right_to_left(title)
    figure.suptitle(title, ha="right" if is_reversed else "left", x=0.98 if is_reversed else 0.02, fontsize="large")
    rows = figure.subplots(4, 1, height_ratios=(2.4, 0.5, 0.5, 2.2))
    plot_weight_bars(rows[0], step.weights, source)
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


CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH", "HALFWIDTH")
SCRIPTS = (  # scripts with a "Noto Sans" font of that name; also the first word of their Unicode character names
    *("ADLAM", "ARABIC", "ARMENIAN", "BALINESE", "BENGALI", "CHEROKEE", "COPTIC", "DEVANAGARI", "ETHIOPIC", "GEORGIAN"),
    *("GOTHIC", "GUJARATI", "GURMUKHI", "HEBREW", "JAVANESE", "KANNADA", "KHMER", "LAO", "MALAYALAM", "MONGOLIAN"),
    *("MYANMAR", "NKO", "ORIYA", "RUNIC", "SINHALA", "SUNDANESE", "SYRIAC", "TAMIL", "TELUGU", "THAANA", "THAI"),
    *("TIFINAGH", "VAI"),
)


def make_figure(
    figsize: tuple[float, float], dpi: int, layout: Literal["constrained"] | None = "constrained"
) -> Figure:
    """Return an empty figure; `figsize` is width and height in inches."""
    return _make_figure_class()(figsize=figsize, dpi=dpi, layout=layout)


@cache
def _make_figure_class() -> type[Figure]:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    class Picture(Figure):
        """A figure whose text has no formulas and falls back to other fonts; a character without one is reported."""

        def draw(self, renderer: Any) -> None:
            for axes in self.axes:
                axes.get_xticklabels(), axes.get_yticklabels()  # called for the side effect: sets the label texts
            for text in self.findobj(Text):
                fallback = [*map(_find_fallback_family, text.get_text()), "sans-serif"]
                families = dict.fromkeys([*text.get_fontfamily(), *fallback])
                text.set_fontfamily([family for family in families if family is not None])
                text.set_parse_math(False)  # a dollar sign is a dollar sign
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", r"Glyph \d+ ")
                super().draw(renderer)

    return Picture


@cache
def _find_fallback_family(character: str) -> str | None:
    """Return an installed font family for a character that the default font lacks; None if it has it or none does."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager

    if character.isascii() or _has_character(findfont(FontProperties()), character):
        return None
    family = _find_family(fontManager.ttflist, character) or _find_family(_add_new_fonts(), character)
    if family is None:
        _report_missing_character(character)
    return family


def _find_family(fonts: Iterable[FontEntry], character: str) -> str | None:
    """Return the family of a font that has a character, of Noto Sans if it can be."""
    fonts = [font for font in fonts if not font.name.lstrip(".").startswith(("Last Resort", "LastResort"))]
    ranked = sorted(fonts, key=lambda font: (not font.name.startswith("Noto Sans"), font.name))
    return next((font.name for font in ranked if _has_character(font.fname, character)), None)


@cache
def _add_new_fonts() -> list[FontEntry]:
    """Return the fonts that were installed after matplotlib listed all fonts, in a file that it keeps."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    listed, known = len(fontManager.ttflist), {entry.fname for entry in fontManager.ttflist}
    for path in sorted(set(findSystemFonts()) - known):
        with suppress(OSError, RuntimeError):
            fontManager.addfont(path)
    return fontManager.ttflist[listed:]


def _has_character(path: str, character: str) -> bool:
    return ord(character) in _read_code_points(path)


@cache
def _read_code_points(path: str) -> frozenset[int]:
    """Return the characters of a font file; opening the files anew for each character would be slow."""
    from matplotlib.font_manager import get_font

    try:
        return frozenset(get_font(path).get_charmap())
    except (OSError, RuntimeError):  # bitmap emoji font, or a damaged file
        return frozenset()


_reported: list[str] = []  # at most one character is reported, not every missing one


def _report_missing_character(character: str) -> None:
    if not _reported:
        _reported.append(character)
        script = unicodedata.name(character, "").split(" ")[0]
        font = "CJK" if script.startswith(CJK) else script.title() if script in SCRIPTS else None
        package, name = "fonts-noto-" + ("cjk" if font == "CJK" else "core"), f"noto-sans-{font}".lower()
        advice = (
            ""
            if font is None
            else (
                f": install Noto Sans {font}, the package {package} of Debian, google-{name}-fonts of Fedora "
                f"or font-{name} of Homebrew"
            )
        )
        log_message(f"no installed font has {character} (U+{ord(character):04X}), which pictures show as a box{advice}")
