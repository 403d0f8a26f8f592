"""Several models as one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from regard.models import Seq2Seq, log_probs


class Ensemble:
    """The decoders of several models as one: probabilities and attention are averaged."""

    def __init__(self, model_or_models: Seq2Seq | Sequence[Seq2Seq]) -> None:
        self.models = list(model_or_models) if isinstance(model_or_models, Sequence) else [model_or_models]
        if not self.models:
            raise ValueError("no model to search with")
        self.decoders = [model.decoder for model in self.models]

    def start(self, source: Tensor, lengths: Tensor) -> list[Any]:
        """Each model's first state."""
        return [model.decoder.start(model.encode(source, lengths)) for model in self.models]

    def step(self, states: list[Any], tokens: Tensor, source_size: int) -> tuple[Tensor, list[Any], Tensor | None]:
        """Tokens B -> log-probabilities B,V, the states, and attention B,S over those models that have it."""
        stepped = [model.decoder.step(state, tokens) for model, state in zip(self.models, states, strict=True)]
        looks = [attended.dense(source_size)[:, 0] for _, _, attended in stepped if attended is not None]
        return mean([log_prob for log_prob, _, _ in stepped]), [state for _, state, _ in stepped], average(looks)

    def widen(self, states: list[Any], width: int, rows: Tensor) -> list[Any]:
        """Every row of each state `width` times: `rows` are the rows that the new ones are."""
        pairs = zip(self.decoders, states, strict=True)
        return [
            decoder.widen(state, width) if shares(decoder) else decoder.select(state, rows) for decoder, state in pairs
        ]

    def reorder(self, states: list[Any], rows: Tensor) -> list[Any]:
        """The given rows of each state, all of which stay within their sources."""
        pairs = zip(self.decoders, states, strict=True)
        return [(decoder.reorder if shares(decoder) else decoder.select)(state, rows) for decoder, state in pairs]

    def keep(self, states: list[Any], rows: Tensor, sources: Tensor) -> list[Any]:
        """The given rows of each state, of the sources that are left."""
        pairs = zip(self.decoders, states, strict=True)
        return [
            decoder.keep(state, rows, sources) if shares(decoder) else decoder.select(state, rows)
            for decoder, state in pairs
        ]

    def join(self, states: list[Any], others: list[Any]) -> list[Any]:
        """The rows of each model's state, and behind them those of another."""
        return [model.decoder.join(*both) for model, *both in zip(self.models, states, others, strict=True)]

    def trim(self, states: list[Any], source: int, target: int) -> list[Any]:
        """Each model's state without padding: no row has more source positions, or tokens behind it, than this."""
        return [model.decoder.trim(state, source, target) for model, state in zip(self.models, states, strict=True)]

    def forced(self, source: Tensor, lengths: Tensor, target_in: Tensor) -> tuple[Tensor, Tensor | None]:
        """A given target all at once: log-probabilities B,T,V, and attention B,T,S."""
        decoded = [model.decoder(model.encode(source, lengths), target_in) for model in self.models]
        looks = [one.attended.dense(source.shape[1]) for one in decoded if one.attended is not None]
        return mean([log_probs(one.logits) for one in decoded]), average(looks)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Search is no training: no dropout in here, and each model as it was afterwards."""
        training = [model for model in self.models if getattr(model, "training", False)]
        for model in training:
            model.eval()
        try:
            yield
        finally:
            for model in training:
                model.train()


def shares(decoder: Any) -> bool:
    """Whether hypotheses of one source share what is known of it; a decoder need not know of that."""
    return getattr(decoder, "shares", False)


def mean(each: list[Tensor]) -> Tensor:
    """The logarithm of the mean probability."""
    return each[0] if len(each) == 1 else torch.stack(each).logsumexp(0) - math.log(len(each))


def average(looks: list[Tensor]) -> Tensor | None:
    """The mean of what was looked at, if anything was."""
    if len(looks) < 2:
        return looks[0] if looks else None
    return torch.stack(looks).mean(0)
