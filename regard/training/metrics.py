"""Training metrics: `metrics.jsonl`, TensorBoard, log lines, throughput; estimates of time and memory.

`benchmarks/hardware.py` uses the cost model for the table of machines.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from regard.console import log_message
from regard.errors import UserError
from regard.paths import format_json, write_atomically
from regard.recipes.recipe import TrainingSettings
from regard.runs import Run
from regard.tasks.base import ValidationSample

if TYPE_CHECKING:
    from regard.training.live_view import LiveView


@dataclass
class MetricsWriter:
    """Appends to `metrics.jsonl`, to TensorBoard if it is enabled and installed, and to the live view of a terminal.

    Only rank 0 writes.
    """

    run: Run
    tensorboard: bool
    is_writer: bool = True
    view: LiveView | None = None
    file: TextIO | None = None
    tensorboard_writer: Any = None

    def open_after(self, step: int, validated: int) -> None:
        """Open the files for appending, without the rows that `truncate_metrics_after` removes."""
        if self.is_writer:
            truncate_metrics_after(self.run, step, validated)
            if self.view is not None:
                for row in self.run.iterate_metrics():
                    self.view.add_row(row)
            self.file = self.run.metrics_path.open("a", encoding="utf-8")
            if self.tensorboard:
                self.tensorboard_writer = _open_tensorboard(self.run.folder / "tensorboard", step)

    def write(self, kind: str, step: int, **figures: Any) -> None:
        """Write one row of metrics."""
        row = {"kind": kind, "step": step, **figures}
        if self.view is not None:
            self.view.add_row(row)
        if self.file is None:
            return
        self.file.write(format_json(row) + "\n")
        self.file.flush()
        if self.tensorboard_writer is not None:
            for name, value in figures.items():
                if isinstance(value, int | float):
                    self.tensorboard_writer.add_scalar(f"{kind}/{name}", value, step)

    def write_samples(self, samples: Sequence[ValidationSample], step: int) -> None:
        """Write validation samples to a file, and with their attention plots to TensorBoard."""
        if self.file is None:
            return
        folder = self.run.folder / "samples"
        folder.mkdir(exist_ok=True)
        lines = (format_json(sample.texts) + "\n" for sample in samples)
        (folder / f"step-{step}.jsonl").write_text("".join(lines), encoding="utf-8")
        if self.tensorboard_writer is not None:
            for number, sample in enumerate(samples, 1):
                if (figure := sample.plot()) is not None:
                    self.tensorboard_writer.add_figure(f"attention/{number}", figure, step, close=False)
                fields = [f"{name}: {text}" for name, text in sample.texts.items()]
                self.tensorboard_writer.add_text(f"sample/{number}", "  \n".join(fields), step)

    def close(self) -> None:
        """Flush and close the files."""
        for writer in filter(None, (self.file, self.tensorboard_writer)):
            writer.close()


def truncate_metrics_after(run: Run, step: int, validated: int) -> None:
    """Remove the rows that will be measured again: after the checkpoint `step`, and validations after `validated`."""
    kept = [row for row in _iterate_valid_rows(run) if row["step"] <= (validated if row.get("kind") == "dev" else step)]
    write_atomically(run.metrics_path, "".join(format_json(row) + "\n" for row in kept))


def _iterate_valid_rows(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the rows of `metrics.jsonl`; unreadable lines are skipped with a log line."""
    lines = run.metrics_path.read_bytes().split(b"\n")[:-1] if run.metrics_path.is_file() else []
    for number, line in enumerate(lines, 1):
        try:
            yield run.parse_metrics_line(line, number)
        except UserError:
            log_message(f"{run.metrics_path}:{number} is not readable and is skipped")


def _open_tensorboard(folder: Path, step: int) -> Any:
    """Return TensorBoard's writer; if it is not installed, log that and return None."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        log_message("TensorBoard is not installed (pip install 'regard[tensorboard]'); metrics.jsonl has all figures")
        return None
    return SummaryWriter(str(folder), purge_step=step + 1)


METRIC_LABELS = {  # in log lines
    "bleu": "BLEU",
    "chrf": "chrF",
    "f1": "F1",
    "macro_f1": "macro-F1",
    "exact": "exact matches",
    "on_object": "on objects",
    "r2": "R²",
    "rmse": "RMSE",
}


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Return validation metrics as text."""
    return ", ".join(f"{METRIC_LABELS.get(name, name)} {format_metric_value(value)}" for name, value in metrics.items())


def format_metric_value(value: float) -> str:
    """Return the value of a metric as text; values below 1 get more digits."""
    return f"{value:.{2 if abs(value) >= 1 else 4}f}"


def format_update_metrics(metrics: Mapping[str, float]) -> str:
    """Return the metrics of an update as text, without memory if that is unknown."""
    memory = "" if math.isnan(metrics["memory_mb"]) else f"  {metrics['memory_mb']:,.0f} MB"
    return (
        f"loss {metrics['loss']:.3f}  lr {metrics['learning_rate']:.2e}  norm {metrics['gradient_norm']:.2f}  "
        f"{metrics['tokens_per_second']:,.0f} tokens/s{memory}  epoch {metrics['epoch']:.2f}"
    )


@dataclass
class Throughput:
    """Number of tokens since the last log line."""

    tokens: float = 0.0
    started_at: float = 0.0

    def reset(self) -> None:
        """Start to count at zero."""
        self.tokens, self.started_at = 0.0, time.monotonic()

    def compute_tokens_per_second(self) -> float:
        """Return the mean speed since the last reset."""
        return self.tokens / max(1e-9, time.monotonic() - self.started_at)


_MAX_SECONDS_BETWEEN_LOGS = 30.0


class EtaEstimator:
    """Estimates the time left from the duration of past updates, validations included."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.start(0)

    def start(self, step: int) -> None:
        """Start measuring at `step`."""
        self.first_step, self.start_time = step, self.clock()
        self.last_log_time = self.start_time

    def is_log_due(self) -> bool:
        """Return whether the last log line is too long ago."""
        return self.clock() - self.last_log_time >= _MAX_SECONDS_BETWEEN_LOGS

    def format_remaining_time(self, step: int, last_step: int | None, is_limit: bool = False) -> str:
        """Return the estimated time left as text, empty if the last step is unknown; counts as a log line.

        `is_limit`: early stopping may end training before the last step.
        """
        self.last_log_time = self.clock()
        if last_step is None or step <= self.first_step:
            return ""
        seconds = (self.last_log_time - self.start_time) / (step - self.first_step) * max(0, last_step - step)
        return f"{format_duration(seconds, is_limit)} left"


_VALIDATIONS = 12  # in training, with validate_every=null
_MAX_SECONDS_BEFORE_SAMPLES = 100.0  # before the first validation, with validate_every=null and limited time


def compute_validation_interval(settings: TrainingSettings, validation_seconds: float, is_first: bool) -> float:
    """Return the fraction of training between two validations, with validate_every=null.

    If time is limited, the first validation comes early, and validations take at most a tenth of the time.
    """
    interval = 1 / _VALIDATIONS
    if settings.minutes is None:
        return interval
    total = 60 * settings.minutes
    interval = max(interval, 10 * validation_seconds / total)
    return min(interval, _MAX_SECONDS_BEFORE_SAMPLES / total) if is_first else interval


def format_duration(seconds: float, is_limit: bool = False) -> str:
    """Return a duration in words, rounded like an estimate; `is_limit`: as the longest one."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    rounded = f"{minutes} min" if minutes < 100 else f"{round(minutes / 60)} h"
    return f"{'at most ' if is_limit else ''}about {rounded}"


@dataclass(frozen=True)
class TrainingCost:
    """Seconds of an update and of a validation, and peak memory, NaN if it is unknown."""

    seconds_per_update: float
    memory_mb: float = math.nan
    seconds_per_validation: float = 0.0

    def estimate_seconds(self, updates: float, validations: float = 0.0) -> float:
        """Return the duration of a training, without the preparation of its data."""
        return updates * self.seconds_per_update + validations * self.seconds_per_validation

    def scale(self, speed: float) -> TrainingCost:
        """Return the cost on a machine that is `speed` times as fast."""
        update, validation = self.seconds_per_update / speed, self.seconds_per_validation / speed
        return replace(self, seconds_per_update=update, seconds_per_validation=validation)


_LONG_SECONDS = 3600.0  # of training on a CPU, for the advice to limit it


def format_estimate(cost: TrainingCost, last_step: int | None, settings: TrainingSettings, is_cpu: bool) -> str:
    """Return as text how long training takes, and how much memory."""
    memory = "" if math.isnan(cost.memory_mb) else f" and {cost.memory_mb:,.0f} MB"
    text = f"an update takes about {cost.seconds_per_update:.2g} s{memory}"
    if settings.minutes is not None:
        updates = 60 * settings.minutes / max(1e-9, cost.seconds_per_update)
        return f"{text}: about {updates:,.0f} fit into {settings.minutes:g} min"
    if last_step is None:
        return text
    seconds = cost.estimate_seconds(last_step)
    text = f"{text}: {last_step:,} take {format_duration(seconds, settings.patience is not None)}"
    if not is_cpu or seconds < _LONG_SECONDS:
        return text
    return (
        f"{text}. --minutes 30 (training.minutes=30) ends with the best model after this time; a smaller model "
        "(model.size, model.layers) is faster"
    )


def format_time_left(minutes: float | None, seconds: float) -> str:
    """Return as text what a resumed run has left of its time, after the seconds that it has trained."""
    return "" if minutes is None else f", {max(minutes - seconds / 60, 0):.1f} of {minutes:g} min left"


def warn_about_limits(settings: TrainingSettings, last_step: int | None) -> None:
    """Log if training.epochs ends before training.steps, or training before the end of the warm-up."""
    if last_step is None:
        return
    if settings.steps is not None and last_step < settings.steps:
        reason = f"training.epochs={settings.epochs:g} ends before training.steps={settings.steps}"
        log_message(f"about {last_step:,} updates: {reason}")
    if last_step < settings.warmup:
        log_message(
            f"training.warmup={settings.warmup} is longer than {last_step:,} updates: the learning rate stays low"
        )
