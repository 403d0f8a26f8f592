"""Optimizers: Adam, AdamW, SGD, Adadelta."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from regard.recipes import TrainingSettings


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
