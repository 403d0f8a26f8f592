"""Several models as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.models import Seq2Seq


class Ensemble:
    """`start`, `step` and `select` of several models at once: probabilities and attention are averaged."""

    def __init__(self, models: Sequence[Seq2Seq]) -> None:
        self.models = models

    def start(self, source: Tensor, lengths: Tensor) -> list[Any]:
        """Each model's first state."""
        return [model.decoder.start(model.encode(source, lengths)) for model in self.models]

    def step(self, states: list[Any], tokens: Tensor, source_size: int) -> tuple[Tensor, list[Any], Tensor | None]:
        """Tokens B -> log-probabilities B,V, the states, and attention B,S over those models that have it."""
        stepped = [model.decoder.step(state, tokens) for model, state in zip(self.models, states, strict=True)]
        log_probs = torch.stack([log_prob for log_prob, _, _ in stepped]).logsumexp(0) - math.log(len(stepped))
        looks = [attended.dense(source_size)[:, 0] for _, _, attended in stepped if attended is not None]
        return log_probs, [state for _, state, _ in stepped], torch.stack(looks).mean(0) if looks else None

    def select(self, states: list[Any], rows: Tensor) -> list[Any]:
        """The given rows of each model's state."""
        return [model.decoder.select(state, rows) for model, state in zip(self.models, states, strict=True)]
