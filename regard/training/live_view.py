"""Live view of a training on a terminal: progress bar, time left, and the curves of the loss and of the dev score."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import fmean
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from regard.training.metrics import METRIC_LABELS, format_metric_value

_LEVELS, _ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
_MAX_CURVE_WIDTH, _MIN_CURVE_WIDTH = 40, 8
_OTHER_WIDTH = 60  # of the columns beside the curves; narrower terminals cut the notes


def format_sparkline(values: Sequence[float], width: int, levels: str = _LEVELS) -> str:
    """Return a curve in at most `width` characters, each for the mean of neighbouring values, without NaN and inf.

    >>> format_sparkline([0, 1, 2, 4, 8, 16, 32], 40)
    '▁▁▁▂▃▅█'
    """
    finite = [value for value in values if math.isfinite(value)]
    columns = min(width, len(finite))
    bounds = [len(finite) * column // columns for column in range(columns + 1)] if columns else []
    means = [fmean(finite[start:end]) for start, end in pairwise(bounds)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    scale = (len(levels) - 1) / ((high - low) or 1.0)
    return "".join(levels[round(scale * (mean - low))] for mean in means)


class LiveView:
    """Three lines about a training, which a terminal draws anew: progress, loss and dev score.

    Args:
        by_loss: The dev loss chooses the best checkpoint, not a score.
    """

    def __init__(self, by_loss: bool) -> None:
        self._by_loss = by_loss
        self._losses: list[float] = []  # of the rows, and not of every update: the curve is computed for each frame
        self._loss = math.nan  # of the latest update
        self._scores: list[tuple[int, float]] = []  # steps and values
        self._score_name = ""
        self._progress = 0.0  # fraction of training
        self._position, self._remaining, self._activity = "", "", "starting"

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Add a row of `metrics.jsonl` to the curves."""
        if row["kind"] == "train":
            self._loss = _get_number(row, "loss")
            self._losses.append(self._loss)
        elif row["kind"] == "dev":
            self._score_name = "loss" if self._by_loss else row.get("measure", "bleu")
            self._scores.append((row["step"], _get_number(row, self._score_name)))

    def show_update(
        self, step: int, last_step: int | None, metrics: Mapping[str, float], remaining: str, progress: float
    ) -> None:
        """Show the metrics of an update, its position in training, and the time left."""
        self._loss = metrics["loss"]
        total = "" if last_step is None else f" of {last_step:,}"
        self._position = f"step {step:,}{total}, {metrics['tokens_per_second']:,.0f} tokens/s"
        self._remaining, self._progress, self._activity = remaining, progress, ""

    def finish(self, note: str) -> None:
        """Show a note instead of the time left."""
        self._remaining = note

    @contextmanager
    def show_activity(self, activity: str) -> Iterator[None]:
        """Show what the next update waits for, instead of the time left."""
        self._activity = activity
        yield
        self._activity = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the lines, in the width and the characters of the terminal."""
        levels = _ASCII_LEVELS if options.ascii_only else _LEVELS
        width = max(_MIN_CURVE_WIDTH, min(_MAX_CURVE_WIDTH, options.max_width - _OTHER_WIDTH))
        grid = Table.grid(padding=(0, 2, 0, 0))
        for justify in ("left", "right", "left"):
            grid.add_column(justify=justify, no_wrap=True)
        grid.add_column()  # the notes, the only column that narrow terminals shrink
        bar = ProgressBar(1.0, self._progress, width)
        grid.add_row("training", f"{self._progress:.0%}", bar, _make_note(self._activity or self._remaining))
        if self._losses or self._position:
            curve = format_sparkline([*self._losses, self._loss], width, levels)
            grid.add_row("loss", format_metric_value(self._loss), curve, _make_note(self._position))
        if self._scores:
            scores = [score for _, score in self._scores]
            label = "dev loss" if self._by_loss else METRIC_LABELS.get(self._score_name, self._score_name)
            curve = format_sparkline(scores, width, levels)
            grid.add_row(label, format_metric_value(scores[-1]), curve, _make_note(self._describe_best()))
        yield grid

    def _describe_best(self) -> str:
        """Return the best score and its step, as far as there is one that is a number."""
        points = [(step, score) for step, score in self._scores if math.isfinite(score)]
        if not points:
            return ""
        step, score = (min if self._by_loss else max)(points, key=lambda point: point[1])
        return f"best {format_metric_value(score)} at step {step:,}"


def _get_number(row: Mapping[str, Any], name: str) -> float:
    """Return a number of a row; NaN if it is missing, or null, as NaN is in `metrics.jsonl`."""
    value = row.get(name)
    return math.nan if value is None else float(value)


def _make_note(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="crop")
