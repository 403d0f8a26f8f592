"""Means of weights: a running one while training (EMA), and one of several checkpoints in the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.runs import checkpoint


class ExponentialMovingAverage:
    """w̄ ← d w̄ + (1 − d) w after each update, d rising to `decay` so that the beginning is soon forgotten."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.weights = list(model.parameters())
        self.decay = decay
        self.reset()

    def reset(self) -> None:
        """From the weights as they are."""
        self.average = [weight.detach().clone() for _, weight in self.list_trained_weights()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After update number `step`."""
        if self.decay:
            kept = min(self.decay, (1 + step) / (10 + step))
            torch._foreach_lerp_(self.average, [weight.detach() for weight in self.weights], 1 - kept)

    def list_trained_weights(self) -> list[tuple[int, Tensor]]:
        """The weights that are trained, by number, where the mean stands for them."""
        return list(enumerate(self.weights)) if self.decay else []

    @contextmanager
    def use_average(self) -> Iterator[None]:
        """The model has the mean for its weights, and in the end those that it had."""
        self._swap_weights()
        try:
            yield
        finally:
            self._swap_weights()

    @torch.no_grad()
    def _swap_weights(self) -> None:
        """The mean takes the place of the weights, and the weights that of the mean."""
        for (_, weight), mean in zip(self.list_trained_weights(), self.average, strict=True):
            kept = weight.detach().clone()
            weight.copy_(mean)
            mean.copy_(kept)


def average_checkpoints(folders: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of checkpoints, tensor by tensor, added up in double precision."""
    total: dict[str, Tensor] = {}
    for folder in folders:
        for name, tensor in checkpoint.read_tensors(folder, checkpoint.MODEL_FILE).items():
            wide = tensor.double() if tensor.is_floating_point() else tensor
            total[name] = total[name] + wide if name in total and tensor.is_floating_point() else wide
    return {
        name: (tensor / len(folders)).float() if tensor.is_floating_point() else tensor
        for name, tensor in total.items()
    }
