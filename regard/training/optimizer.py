"""Optimizers (Adam, AdamW, SGD, Adadelta), learning rate schedules, and the exponential moving average of the weights.

A schedule (constant, inverse-sqrt, halving, cosine; with linear warm-up) is a pure function of step and epoch, so there
is no state to save.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from regard.recipes.recipe import TrainingSettings


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Build the optimizer from the settings; the learning rate is set before each update.

    Fused implementations pass over the weights once, on a CPU as well. They do not support sharded weights (DTensors).
    """
    parameters = list(model.parameters())
    fused = all(type(weight) is nn.Parameter for weight in parameters)
    rate, decay = settings.learning_rate, settings.weight_decay
    betas, epsilon = (settings.betas[0], settings.betas[1]), settings.epsilon
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "adam": lambda: torch.optim.Adam(parameters, rate, betas, epsilon, decay, fused=fused),
        "adamw": lambda: torch.optim.AdamW(parameters, rate, betas, epsilon, decay, fused=fused),
        "sgd": lambda: torch.optim.SGD(parameters, rate, weight_decay=decay, fused=fused),
        "adadelta": lambda: torch.optim.Adadelta(parameters, rate, rho=0.95, eps=epsilon, weight_decay=decay),
    }
    return makers[settings.optimizer]()


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


class ExponentialMovingAverage:
    """EMA of the weights: w̄ ← d w̄ + (1 − d) w after each update.

    The decay d rises to `decay`, so that early weights are forgotten. Without decay there is no average, and `weights`
    is empty.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.weights: list[Tensor] = list(model.parameters()) if decay else []
        self.decay = decay
        self.reset()

    def reset(self) -> None:
        """Restart the average from the current weights."""
        self.average = [weight.detach().clone() for weight in self.weights]

    def update(self, step: int) -> None:
        """Update the average after update number `step`."""
        if self.weights:
            decay = min(self.decay, (1 + step) / (10 + step))
            get_ema_multi_avg_fn(decay)(self.average, self.weights, step)  # type: ignore[no-untyped-call]

    @contextmanager
    def use_average(self) -> Iterator[None]:
        """Give the model the averaged weights inside the context, and restore the raw weights on exit."""
        self._swap_weights()
        try:
            yield
        finally:
            self._swap_weights()

    @torch.no_grad()
    def _swap_weights(self) -> None:
        """Swap averaged and raw weights."""
        for weight, mean in zip(self.weights, self.average, strict=True):
            raw_weight = weight.detach().clone()
            weight.copy_(mean)
            mean.copy_(raw_weight)
