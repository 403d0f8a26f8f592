"""Several models as one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.models import AlignmentHead, Seq2Seq, log_probs
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
        self.shifted = [_is_shifted(model.decoder) for model in self.models]

    @cached_property
    def decoders(self) -> list[Any]:
        """Those that take the steps; a search that goes another way has no need to look for faster ones."""
        return [_choose_decoder(model) for model in self.models]

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
        attention = (
            None
            if source_size is None
            else self.average_attention([attended for _, _, attended in stepped], source_size)
        )
        return (
            _log_mean_exp([log_prob for log_prob, _, _ in stepped]),
            [state for _, state, _ in stepped],
            None if attention is None else attention[:, 0],
        )

    def average_attention(self, attended: Sequence[Attended | None], source_size: int) -> Tensor | None:
        """The mean of what was looked at B,T,S, if anything was."""
        reported = [(one, shifted) for one, shifted in zip(attended, self.shifted, strict=True) if one is not None]
        return _mean_attention([one.dense(source_size) for one, after in reported if after == reported[0][1]])

    def expand_beams(self, states: list[Any], width: int, rows: Tensor) -> list[Any]:
        """Every row of each state `width` times: `rows` are the rows that the new ones are."""
        pairs = zip(self.decoders, states, strict=True)
        return [
            decoder.expand_beams(state, width) if _supports_shared_memory(decoder) else decoder.select(state, rows)
            for decoder, state in pairs
        ]

    def reorder_beams(self, states: list[Any], rows: Tensor) -> list[Any]:
        """The given rows of each state, all of which stay within their sources."""
        pairs = zip(self.decoders, states, strict=True)
        return [
            (decoder.reorder_beams if _supports_shared_memory(decoder) else decoder.select)(state, rows)
            for decoder, state in pairs
        ]

    def keep_rows(self, states: list[Any], rows: Tensor, sources: Tensor) -> list[Any]:
        """The given rows of each state, of the sources that are left."""
        pairs = zip(self.decoders, states, strict=True)
        return [
            decoder.keep_rows(state, rows, sources) if _supports_shared_memory(decoder) else decoder.select(state, rows)
            for decoder, state in pairs
        ]

    def concat_states(self, states: list[Any], others: list[Any]) -> list[Any]:
        """The rows of each model's state, and behind them those of another."""
        return [decoder.concat_states(*both) for decoder, *both in zip(self.decoders, states, others, strict=True)]

    def trim_padding(self, states: list[Any], source_length: int, target_length: int) -> list[Any]:
        """Each model's state without padding: no row has more source positions, or tokens behind it, than this."""
        return [
            decoder.trim_padding(state, source_length, target_length)
            for decoder, state in zip(self.decoders, states, strict=True)
        ]

    def forward(self, source: Tensor, lengths: Tensor, target_in: Tensor) -> tuple[Tensor, Tensor | None]:
        """A given target all at once: log-probabilities B,T,V, and attention B,T,S."""
        decoded = [model.decoder(model.encode(source, lengths), target_in) for model in self.models]
        attention = self.average_attention([one.attended for one in decoded], source.shape[1])
        return _log_mean_exp([log_probs(one.logits) for one in decoded]), attention

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """Search is no training: no dropout in here, and each model as it was afterwards."""
        training = [model for model in self.models if getattr(model, "training", False)]
        for model in training:
            model.eval()
        try:
            yield
        finally:
            for model in training:
                model.train()


def _choose_decoder(model: Any) -> Any:
    """The model's decoder, or a faster one that takes the same steps."""
    faster = getattr(model, "make_fast_decoder", None)
    return model.decoder if faster is None else faster(model.decoder)


def _supports_shared_memory(decoder: Any) -> bool:
    """Whether hypotheses of one source share what is known of it; a decoder need not know of that."""
    return getattr(decoder, "supports_shared_memory", False)


def _is_shifted(decoder: Any) -> bool:
    """Whether its steps look for the words before; a decoder need not know of that."""
    return getattr(decoder, "alignment_head", AlignmentHead()).shifted


def _log_mean_exp(model_log_probs: list[Tensor]) -> Tensor:
    """The logarithm of the mean probability."""
    return (
        model_log_probs[0]
        if len(model_log_probs) == 1
        else torch.stack(model_log_probs).logsumexp(0) - math.log(len(model_log_probs))
    )


def _mean_attention(attentions: list[Tensor]) -> Tensor | None:
    """Their mean, if there are any."""
    if len(attentions) < 2:
        return attentions[0] if attentions else None
    return torch.stack(attentions).mean(0)
