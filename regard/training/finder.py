"""Which learning rate suits: a few updates at rates that rise, and where the loss falls fastest (Smith 2017)."""

from __future__ import annotations

import math
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

from regard.console import bar
from regard.errors import UserError
from regard.training.device import preserve_generators
from regard.training.loop import Trainer

LOW, HIGH, UPDATES = 1e-6, 1.0, 120
MEMORY = 0.9  # of the running mean that smooths the losses
LOST = 3.0  # times the least loss: from there on nothing is learnt any more


class Tried(NamedTuple):
    """A learning rate, and the loss about there."""

    rate: float
    loss: float


def find(trainer: Trainer, updates: int = UPDATES) -> list[Tried]:
    """Trains for so many updates, the rate rising evenly on a logarithmic scale; ends early where the loss explodes."""
    gradients = trainer.gradients
    tried: list[Tried] = []
    mean = 0.0
    with preserve_generators(trainer.device), closing(trainer.shares()) as shares, bar() as progress:
        task = progress.add_task("trying rates", total=updates, note="")
        for number, share in zip(range(updates), shares, strict=False):
            rate = LOW * (HIGH / LOW) ** (number / max(1, updates - 1))
            for group in trainer.optimizer.param_groups:
                group["lr"] = rate
            targets = sum(batch.targets for batch in share.batches)
            loss = float(gradients.add(share.batches, number + 1, 1).loss) / max(1, targets)
            gradients.clip(trainer.optimizer)
            mean = MEMORY * mean + (1 - MEMORY) * loss
            tried.append(Tried(rate, mean / (1 - MEMORY ** (number + 1))))
            gradients.step(trainer.optimizer)
            gradients.scaler.update()
            if not math.isfinite(loss) or tried[-1].loss > LOST * min(one.loss for one in tried):
                break
            progress.update(task, advance=1, note=f"{rate:.1e}: loss {tried[-1].loss:.2f}")
    finite = [one for one in tried if math.isfinite(one.loss)]
    if not finite:
        raise UserError(f"the loss is {tried[0].loss} from the first update on; is the data what it should be?")
    return finite


def suggested(tried: list[Tried]) -> float:
    """The rate at which the loss falls fastest for each step of the logarithm."""
    falls = [(after.loss - before.loss, after.rate) for before, after in pairwise(tried)]
    if not falls or min(falls)[0] >= 0:
        raise UserError(f"no learning rate from {LOW} to {HIGH} made the loss fall; is the data what it should be?")
    return min(falls)[1]
