"""How good a model is on the dev set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from regard.models.regression import Regressor
from regard.plot import tracks
from regard.tasks.regression.examples import Examples
from regard.tasks.regression.files import Series, Table
from regard.tasks.regression.following import follow
from regard.tasks.regression.measures import figures
from regard.tasks.regression.prediction import compared, written
from regard.tasks.regression.scale import Scales
from regard.tasks.task import Validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 5


class Sample(NamedTuple):
    """A series of the dev set as the model follows it now."""

    right: Table
    made: Table

    def told(self) -> dict[str, str]:
        """The right numbers and the model's."""
        return {"right": written(self.right), "model": written(self.made)}

    def picture(self) -> Figure | None:
        """Both over time."""
        return tracks(compared(self.right, self.made))


class Validator:
    """The dev set: the mean square error in the scale of training of all of it, and figures of its first `measured`."""

    def __init__(self, dev: Sequence[Series], scales: Scales, batch_tokens: int, measured: int) -> None:
        self.gold = [one.targets for one in dev if one.targets is not None]
        self.scales = scales
        self.batch_tokens = batch_tokens
        self.measured = measured
        self.examples = Examples(dev, scales)

    def __call__(self, model: Regressor, device: torch.device) -> Validation:
        """Measures the model; leaves it as it was, and takes nothing from the random generators."""
        training = model.training
        model.eval()
        given = follow(model, self.examples, device, self.batch_tokens)
        model.train(training)
        errors = np.concatenate(given) - np.concatenate(self.examples.target)
        made = [self.scales.targets.natural(one) for one in given[: self.measured]]
        gold = self.gold[: self.measured]
        samples = [Sample(*both) for both in zip(gold[:SAMPLES], made[:SAMPLES], strict=True)]
        return Validation(float(np.square(errors).mean()), figures(gold, made), "r2", samples)
