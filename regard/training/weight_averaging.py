"""Weight averaging: exponential moving average (EMA) in training, and checkpoint averaging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from regard.runs import checkpoint


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


def average_checkpoints(folders: Sequence[Path]) -> dict[str, Tensor]:
    """Return the average weights of checkpoints, summed in double precision."""
    total: dict[str, Tensor] = {}
    for folder in folders:
        for name, tensor in checkpoint.read_tensors(folder, checkpoint.MODEL_FILE).items():
            total[name] = total.get(name, 0) + tensor.double() if tensor.is_floating_point() else tensor
    return {
        name: (tensor / len(folders)).float() if tensor.is_floating_point() else tensor
        for name, tensor in total.items()
    }
