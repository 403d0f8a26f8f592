"""Which learning rate suits: a few updates at rates that rise, and where the loss falls fastest (Smith 2017)."""

from __future__ import annotations

import math
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

from regard.console import make_progress_bar
from regard.errors import UserError
from regard.training.precision import preserve_generators
from regard.training.trainer import Trainer

MIN_RATE, MAX_RATE, _NUM_UPDATES = 1e-6, 1.0, 120
_SMOOTHING = 0.9  # of the running mean that smooths the losses
_DIVERGENCE_FACTOR = 3.0  # times the least loss: from there on nothing is learnt any more


class LearningRatePoint(NamedTuple):
    """A learning rate, and the loss about there."""

    rate: float
    loss: float


def sweep_learning_rates(trainer: Trainer, updates: int = _NUM_UPDATES) -> list[LearningRatePoint]:
    """Trains for so many updates, the rate rising evenly on a logarithmic scale; ends early where the loss explodes."""
    gradients = trainer.accumulator
    points: list[LearningRatePoint] = []
    mean = 0.0
    with (
        preserve_generators(trainer.device),
        closing(trainer.load_update_batches()) as batch_stream,
        make_progress_bar() as progress,
    ):
        task = progress.add_task("trying rates", total=updates, note="")
        for number, update_batches in zip(range(updates), batch_stream, strict=False):
            rate = MIN_RATE * (MAX_RATE / MIN_RATE) ** (number / max(1, updates - 1))
            for group in trainer.optimizer.param_groups:
                group["lr"] = rate
            targets = sum(batch.num_targets for batch in update_batches.batches)
            loss = float(gradients.accumulate(update_batches.batches, number + 1, 1).loss) / max(1, targets)
            gradients.clip_norm(trainer.optimizer)
            mean = _SMOOTHING * mean + (1 - _SMOOTHING) * loss
            points.append(LearningRatePoint(rate, mean / (1 - _SMOOTHING ** (number + 1))))
            gradients.step(trainer.optimizer)
            gradients.scaler.update()
            if not math.isfinite(loss) or points[-1].loss > _DIVERGENCE_FACTOR * min(one.loss for one in points):
                break
            progress.update(task, advance=1, note=f"{rate:.1e}: loss {points[-1].loss:.2f}")
    finite = [one for one in points if math.isfinite(one.loss)]
    if not finite:
        raise UserError(f"the loss is {points[0].loss} from the first update on; is the data what it should be?")
    return finite


def suggest_learning_rate(points: list[LearningRatePoint]) -> float:
    """The rate at which the loss falls fastest for each step of the logarithm."""
    falls = [(after.loss - before.loss, after.rate) for before, after in pairwise(points)]
    if not falls or min(falls)[0] >= 0:
        raise UserError(
            f"no learning rate from {MIN_RATE} to {MAX_RATE} made the loss fall; is the data what it should be?"
        )
    return min(falls)[1]
