"""Several models as one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.models import Seq2Seq, Viewpoint, log_probs
from regard.nn import Attended


class Ensemble:
    """The decoders of several models as one: probabilities and attention are averaged.

    A step of one may look for the word that it writes, and of another for the word before: attention is that of those
    which do as the first of them does.
    """

    def __init__(self, model_or_models: Seq2Seq | Sequence[Seq2Seq]) -> None:
        self.models = list(model_or_models) if isinstance(model_or_models, Sequence) else [model_or_models]
        if not self.models:
            raise ValueError("no model to search with")
        self.after = [after(model.decoder) for model in self.models]

    @cached_property
    def decoders(self) -> list[Any]:
        """Those that take the steps; a search that goes another way has no need to look for faster ones."""
        return [stepping(model) for model in self.models]

    def start(self, source: Tensor, lengths: Tensor) -> list[Any]:
        """Each model's first state."""
        pairs = zip(self.decoders, self.models, strict=True)
        return [decoder.start(model.encode(source, lengths)) for decoder, model in pairs]

    def step(
        self, states: list[Any], tokens: Tensor, source_size: int | None
    ) -> tuple[Tensor, list[Any], Tensor | None]:
        """Tokens B -> log-probabilities B,V, the states, and attention B,S over those models that have it.

        Where nobody wants to know what was looked at, `source_size` is None.
        """
        stepped = [decoder.step(state, tokens) for decoder, state in zip(self.decoders, states, strict=True)]
        look = None if source_size is None else self.look([attended for _, _, attended in stepped], source_size)
        return (
            mean([log_prob for log_prob, _, _ in stepped]),
            [state for _, state, _ in stepped],
            None if look is None else look[:, 0],
        )

    def look(self, attended: Sequence[Attended | None], source_size: int) -> Tensor | None:
        """The mean of what was looked at B,T,S, if anything was."""
        seen = [(one, after) for one, after in zip(attended, self.after, strict=True) if one is not None]
        return average([one.dense(source_size) for one, after in seen if after == seen[0][1]])

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
        return [decoder.join(*both) for decoder, *both in zip(self.decoders, states, others, strict=True)]

    def trim(self, states: list[Any], source: int, target: int) -> list[Any]:
        """Each model's state without padding: no row has more source positions, or tokens behind it, than this."""
        return [decoder.trim(state, source, target) for decoder, state in zip(self.decoders, states, strict=True)]

    def forced(self, source: Tensor, lengths: Tensor, target_in: Tensor) -> tuple[Tensor, Tensor | None]:
        """A given target all at once: log-probabilities B,T,V, and attention B,T,S."""
        decoded = [model.decoder(model.encode(source, lengths), target_in) for model in self.models]
        look = self.look([one.attended for one in decoded], source.shape[1])
        return mean([log_probs(one.logits) for one in decoded]), look

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


def stepping(model: Any) -> Any:
    """The model's decoder, or a faster one that takes the same steps."""
    faster = getattr(model, "stepper", None)
    return model.decoder if faster is None else faster(model.decoder)


def shares(decoder: Any) -> bool:
    """Whether hypotheses of one source share what is known of it; a decoder need not know of that."""
    return getattr(decoder, "shares", False)


def after(decoder: Any) -> bool:
    """Whether its steps look for the words before; a decoder need not know of that."""
    return getattr(decoder, "viewpoint", Viewpoint()).after


def mean(each: list[Tensor]) -> Tensor:
    """The logarithm of the mean probability."""
    return each[0] if len(each) == 1 else torch.stack(each).logsumexp(0) - math.log(len(each))


def average(looks: list[Tensor]) -> Tensor | None:
    """Their mean, if there are any."""
    if len(looks) < 2:
        return looks[0] if looks else None
    return torch.stack(looks).mean(0)
