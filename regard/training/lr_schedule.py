"""Learning rate schedules: constant, inverse-sqrt, halving, cosine; with linear warm-up.

A schedule is a pure function of step and epoch, so there is no state to save.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from regard.recipes import TrainingSettings

_Schedule = Callable[[TrainingSettings, int, float], float]


def _constant(settings: TrainingSettings, step: int, epoch: float) -> float:
    """Return 1: the learning rate does not change."""
    return 1.0


def _inverse_sqrt(settings: TrainingSettings, step: int, epoch: float) -> float:
    """Return √(warmup / step) after the warm-up: Vaswani 2017, eq. 3, with the peak as the learning rate."""
    return math.sqrt(max(1, settings.warmup) / max(step, settings.warmup, 1))


def _halving(settings: TrainingSettings, step: int, epoch: float) -> float:
    """Return ½ from `halve_after` epochs on, halved again every `halve_every` epochs (Sutskever 2014, Luong 2015)."""
    if epoch < settings.halve_after:
        return 1.0
    return float(0.5 ** (1 + math.floor((epoch - settings.halve_after) / settings.halve_every)))


def _cosine(settings: TrainingSettings, step: int, epoch: float) -> float:
    """Return half a cosine from the end of the warm-up down to 0 at the last step, which therefore changes no weight.

    It stays as it is: a cosine that ends above 0 would change the rates of runs that are resumed.
    """
    assert settings.steps is not None
    progress = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, progress))))


_SCHEDULES: dict[str, _Schedule] = {
    "constant": _constant,
    "inverse-sqrt": _inverse_sqrt,
    "halving": _halving,
    "cosine": _cosine,
}


def compute_learning_rate(settings: TrainingSettings, step: int, epoch: float) -> float:
    """Return the learning rate of update `step`, counted from 1, at a fractional epoch.

    It rises linearly in the warm-up.
    """
    warmup_factor = min(1.0, step / settings.warmup) if settings.warmup else 1.0
    return settings.learning_rate * warmup_factor * _SCHEDULES[settings.schedule](settings, step, epoch)
