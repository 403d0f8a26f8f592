"""Sutskever, Vinyals & Le 2014, Sequence to sequence learning with neural networks.

The decoder starts from the encoder's last state and has no attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.models.base import CrossEntropy, Encoded, Seq2Seq, log_probs
from regard.models.rnn_common import RecurrentDecoder, RecurrentEncoder, RecurrentInitSettings, init_uniform_
from regard.nn import State


@dataclass(frozen=True, kw_only=True)
class SutskeverSettings(RecurrentInitSettings):
    """The `model` section of `sutskever2014`."""

    cell: Literal["gru", "lstm", "elman"] = "lstm"
    bidirectional: bool = False
    reverse: bool = True


class SutskeverState(NamedTuple):
    """State between two steps: each layer's state."""

    recurrent: list[State]


class SutskeverDecoder(RecurrentDecoder):
    """Decoder without attention: p(y_t | v, y_1 … y_{t-1}) = softmax(W h_t), h_0 = v (eq. 1)."""

    computation_order = ("h_t",)

    def __init__(self, settings: SutskeverSettings, target_size: int) -> None:
        super().__init__()
        self.embedding = settings.make_embedding(target_size)
        self.recurrent = settings.make_recurrent(settings.embedding_size)
        self.output = nn.Linear(settings.size, target_size)
        self.bridge = settings.make_state_map()
        self.dropout = nn.Dropout(settings.dropout)
        settings.tie_weights(self.embedding, self.output, "states have")

    def start(self, encoded: Encoded) -> SutskeverState:
        """Return the encoder's last states, over the bridge."""
        return SutskeverState(self.bridge(encoded.state))

    def vocabulary_layers(self) -> list[nn.Module]:
        """Return E and W."""
        return [self.embedding, self.output]

    def hidden_states(self, encoded: Encoded, target_in: Tensor) -> tuple[Tensor, None]:
        """Return h_t of the top layer; without attention, all steps run in parallel."""
        words = self.dropout(self.embedding(target_in))
        lengths = torch.full((len(words),), words.shape[1], device=words.device)
        h, _ = self.recurrent(words, lengths, self.start(encoded).recurrent)
        return self.dropout(h), None

    def step(self, state: SutskeverState, tokens: Tensor) -> tuple[Tensor, SutskeverState, None]:
        """Feed tokens (B,); return log-probabilities (B, V) and the new state."""
        h, recurrent = self.recurrent.step(self.dropout(self.embedding(tokens)), state.recurrent)
        return log_probs(self.output(self.dropout(h))), SutskeverState(recurrent), None


def build(settings: SutskeverSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> Seq2Seq:
    """Build the model from its settings."""
    decoder = SutskeverDecoder(settings, target_size)
    model = Seq2Seq(RecurrentEncoder(settings, source_size), decoder, criterion)
    if settings.initialisation == "paper":
        init_uniform_(model, 0.08)
    return model
