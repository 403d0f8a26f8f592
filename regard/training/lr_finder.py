"""Learning rate range test: train with rising rates and suggest the one where the loss falls fastest (Smith 2017)."""

from __future__ import annotations

import math
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

from regard.console import make_progress_bar
from regard.errors import UserError
from regard.training.device import preserve_generators
from regard.training.trainer import Trainer

MIN_RATE, MAX_RATE, _NUM_UPDATES = 1e-6, 1.0, 120
_SMOOTHING = 0.9  # decay of the moving average of the losses
_DIVERGENCE_FACTOR = 3.0  # the test ends when the loss exceeds its minimum by this factor


class LearningRatePoint(NamedTuple):
    """Learning rate and the smoothed loss at this rate."""

    rate: float
    loss: float


def sweep_learning_rates(trainer: Trainer, updates: int = _NUM_UPDATES) -> list[LearningRatePoint]:
    """Train for `updates` updates with exponentially rising rates; stop early if the loss diverges."""
    trainer.schedule = lambda step, epoch: MIN_RATE * (MAX_RATE / MIN_RATE) ** ((step - 1) / max(1, updates - 1))
    points: list[LearningRatePoint] = []
    mean = 0.0
    with (
        preserve_generators(trainer.device),
        closing(trainer.load_update_batches()) as batch_stream,
        make_progress_bar() as progress,
    ):
        task = progress.add_task("trying rates", total=updates, note="")
        for index, update_batches in zip(range(updates), batch_stream, strict=False):
            step_metrics, _ = trainer.train_step(update_batches)
            loss, rate = step_metrics["loss"], step_metrics["learning_rate"]
            mean = _SMOOTHING * mean + (1 - _SMOOTHING) * loss
            points.append(LearningRatePoint(rate, mean / (1 - _SMOOTHING ** (index + 1))))
            if not math.isfinite(loss) or points[-1].loss > _DIVERGENCE_FACTOR * min(point.loss for point in points):
                break
            progress.update(task, advance=1, note=f"{rate:.1e}: loss {points[-1].loss:.2f}")
    finite = [point for point in points if math.isfinite(point.loss)]
    if not finite:
        raise UserError(f"the loss is {points[0].loss} from the first update on; check the training data")
    return finite


def suggest_learning_rate(points: list[LearningRatePoint]) -> float:
    """Return the rate at which the loss falls fastest per step on the logarithmic scale."""
    changes = [(after.loss - before.loss, after.rate) for before, after in pairwise(points)]
    if not changes or min(changes)[0] >= 0:
        raise UserError(f"no learning rate from {MIN_RATE} to {MAX_RATE} made the loss fall; check the training data")
    return min(changes)[1]
