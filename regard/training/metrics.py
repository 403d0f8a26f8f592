"""Training metrics: `metrics.jsonl`, TensorBoard, log lines, throughput and the estimated time left (ETA)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from regard.console import log_message
from regard.errors import UserError
from regard.paths import format_json, write_atomically
from regard.recipes.recipe import TrainingSettings
from regard.runs import Run
from regard.tasks.base import ValidationSample


@dataclass
class MetricsWriter:
    """Appends to `metrics.jsonl` and, if it is enabled and installed, to TensorBoard; only rank 0 writes."""

    run: Run
    tensorboard: bool
    is_writer: bool = True
    file: TextIO | None = None
    tensorboard_writer: Any = None

    def open_after(self, step: int, validated: int) -> None:
        """Open the files for appending, without the rows that `truncate_metrics_after` removes."""
        if self.is_writer:
            truncate_metrics_after(self.run, step, validated)
            self.file = self.run.metrics_path.open("a", encoding="utf-8")
            if self.tensorboard:
                self.tensorboard_writer = _open_tensorboard(self.run.folder / "tensorboard", step)

    def write(self, kind: str, step: int, **figures: Any) -> None:
        """Write one row of metrics."""
        if self.file is None:
            return
        self.file.write(format_json({"kind": kind, "step": step, **figures}) + "\n")
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
