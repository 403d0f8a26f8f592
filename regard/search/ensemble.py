"""Ensembles: several models with the same vocabularies decode as one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.models.base import AlignmentHead, log_probs
from regard.nn import Attended


class SearchModel(Protocol):
    """A model as a search needs it: `Seq2Seq`, or one of a faster backend.

    Its decoder has `start`, `step` and `select`; with `supports_shared_memory` also the other methods of `Decoder`.
    """

    @property
    def decoder(self) -> Any:
        """The decoder."""

    def encode(self, source: Tensor, lengths: Tensor, /) -> Any:
        """Encode sources (B, S) with lengths (B,) for `decoder.start`."""


class Ensemble:
    """The decoders of several models as one: probabilities and attention are averaged.

    A decoder may report attention for the token of this step or for the one before (`AlignmentHead.shifted`); only
    attention with the convention of the first model that has any is averaged.
    """

    def __init__(self, model_or_models: SearchModel | Sequence[SearchModel]) -> None:
        self.models = list(model_or_models) if isinstance(model_or_models, Sequence) else [model_or_models]
        if not self.models:
            raise ValueError("no model to search with")
        self.shifted = [getattr(model.decoder, "alignment_head", AlignmentHead()).shifted for model in self.models]

    @cached_property
    def decoders(self) -> list[Any]:
        """Return the decoders, or faster ones with the same results; made when the first step needs them."""
        return [_fast_decoder(model) for model in self.models]

    def start(self, source: Tensor, lengths: Tensor) -> list[Any]:
        """Encode sources (B, S) and return each model's initial decoder state."""
        pairs = zip(self.decoders, self.models, strict=True)
        return [decoder.start(model.encode(source, lengths)) for decoder, model in pairs]

    def step(
        self, states: list[Any], tokens: Tensor, source_length: int | None
    ) -> tuple[Tensor, list[Any], Tensor | None]:
        """Run one step of every decoder.

        Args:
            tokens: (R,) newest token of each row.
            source_length: S; None if attention is not needed.

        Returns:
            log-probabilities (R, V), the new states, and attention (R, S) or None.
        """
        stepped = [decoder.step(state, tokens) for decoder, state in zip(self.decoders, states, strict=True)]
        next_log_probs, new_states, attended = map(list, zip(*stepped, strict=True))
        attention = None if source_length is None else self._average_attention(attended, source_length)
        return _log_mean_exp(next_log_probs), new_states, None if attention is None else attention[:, 0]

    def forward(self, source: Tensor, lengths: Tensor, target_in: Tensor) -> tuple[Tensor, Tensor | None]:
        """Decode given targets (B, T) with teacher forcing: log-probabilities (B, T, V) and attention (B, T, S)."""
        decoded = [model.decoder(model.encode(source, lengths), target_in) for model in self.models]
        attention = self._average_attention([one.attended for one in decoded], source.shape[1])
        return _log_mean_exp([log_probs(one.logits) for one in decoded]), attention

    def _average_attention(self, attended: Sequence[Attended | None], source_length: int) -> Tensor | None:
        given = [(one, shifted) for one, shifted in zip(attended, self.shifted, strict=True) if one is not None]
        weights = [one.dense(source_length) for one, shifted in given if shifted == given[0][1]]
        if len(weights) < 2:
            return weights[0] if weights else None
        return torch.stack(weights).mean(0)

    def expand_beams(self, states: list[Any], width: int, rows: Tensor) -> list[Any]:
        """Repeat every row of each state `width` times; `rows` are the rows that the new ones copy."""
        return [
            decoder.expand_beams(state, width) if _shares_memory(decoder) else decoder.select(state, rows)
            for decoder, state in zip(self.decoders, states, strict=True)
        ]

    def reorder_beams(self, states: list[Any], rows: Tensor) -> list[Any]:
        """Reorder the rows of each state within their sources."""
        return [
            decoder.reorder_beams(state, rows) if _shares_memory(decoder) else decoder.select(state, rows)
            for decoder, state in zip(self.decoders, states, strict=True)
        ]

    def keep_rows(self, states: list[Any], rows: Tensor, sources: Tensor) -> list[Any]:
        """Keep these rows of each state, which belong to these sources."""
        return [
            decoder.keep_rows(state, rows, sources) if _shares_memory(decoder) else decoder.select(state, rows)
            for decoder, state in zip(self.decoders, states, strict=True)
        ]

    def concat_states(self, states: list[Any], others: list[Any]) -> list[Any]:
        """Append the rows of other states."""
        return [decoder.concat_states(*pair) for decoder, *pair in zip(self.decoders, states, others, strict=True)]

    def trim_padding(self, states: list[Any], source: int, target: int) -> list[Any]:
        """Drop padding: no row has more source positions, or previous target tokens, than this."""
        return [
            decoder.trim_padding(state, source, target) for decoder, state in zip(self.decoders, states, strict=True)
        ]

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """Switch dropout off inside, and restore each model's mode on exit."""
        training: list[Any] = [model for model in self.models if getattr(model, "training", False)]
        for model in training:
            model.eval()
        try:
            yield
        finally:
            for model in training:
                model.train()


def _fast_decoder(model: Any) -> Any:
    acceleration = getattr(model, "acceleration", None)
    make_decoder = None if acceleration is None else acceleration.make_decoder
    return model.decoder if make_decoder is None else make_decoder(model.decoder)


def _shares_memory(decoder: Any) -> bool:
    """Return whether hypotheses of one source share its memory; custom decoders need not define the attribute."""
    return getattr(decoder, "supports_shared_memory", False)


def _log_mean_exp(log_probs: list[Tensor]) -> Tensor:
    return log_probs[0] if len(log_probs) == 1 else torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))
