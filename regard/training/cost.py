"""Cost model of training: time and memory from the seconds of an update, and what is said before training starts.

`benchmarks/hardware.py` uses the same model for the table of machines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from regard.console import log_message
from regard.recipes.recipe import TrainingSettings
from regard.training.metrics import format_duration


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
