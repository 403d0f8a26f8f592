"""Learning rates as functions of how far training is: nothing to save, nothing to restore."""

from __future__ import annotations

import math
from collections.abc import Callable

from regard.training.settings import TrainingSettings

_Schedule = Callable[[TrainingSettings, int, float], float]


def _constant(settings: TrainingSettings, step: int, epoch: float) -> float:
    """The learning rate itself."""
    return 1.0


def _inverse_sqrt(settings: TrainingSettings, step: int, epoch: float) -> float:
    """√(warmup / step) after the warm-up: Vaswani 2017, eq. 3, with the peak as the learning rate."""
    return math.sqrt(max(1, settings.warmup) / max(step, settings.warmup, 1))


def _halving(settings: TrainingSettings, step: int, epoch: float) -> float:
    """½ from `halve_after` epochs on, and again every `halve_every` (Sutskever 2014, Luong 2015)."""
    if epoch < settings.halve_after:
        return 1.0
    return float(0.5 ** (1 + math.floor((epoch - settings.halve_after) / settings.halve_every)))


def _cosine(settings: TrainingSettings, step: int, epoch: float) -> float:
    """Half a cosine from the end of the warm-up down to 0 at the last step, which therefore changes no weight.

    A cosine that ended above 0 would change every rate of runs that are resumed.
    """
    assert settings.steps is not None
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, done))))


_SCHEDULES: dict[str, _Schedule] = {
    "constant": _constant,
    "inverse-sqrt": _inverse_sqrt,
    "halving": _halving,
    "cosine": _cosine,
}


def compute_learning_rate(settings: TrainingSettings, step: int, epoch: float) -> float:
    """The learning rate of update number `step`, counted from 1, at a point of an epoch; it rises over the warm-up."""
    rise = min(1.0, step / settings.warmup) if settings.warmup else 1.0
    return settings.learning_rate * rise * _SCHEDULES[settings.schedule](settings, step, epoch)
