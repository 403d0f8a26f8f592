"""Cho et al. 2014, Learning phrase representations using RNN encoder-decoder for statistical machine translation.

The source is encoded as one vector c, which the decoder reads at every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.models.base import CrossEntropy, Decoded, Encoded, Seq2Seq, log_probs
from regard.models.rnn_common import (
    DeepOutput,
    DeepOutputSettings,
    RecurrentDecoder,
    RecurrentEncoder,
    init_orthogonal_,
)
from regard.nn import State, hidden_state


@dataclass(frozen=True, kw_only=True)
class ChoSettings(DeepOutputSettings):
    """The `model` section of `cho2014`."""

    bidirectional: bool = False


class ChoState(NamedTuple):
    """State between two steps: the source vector c, and each layer's state."""

    context: Tensor
    recurrent: list[State]


class ChoDecoder(RecurrentDecoder):
    """Cho's decoder: h'_t = f(h'_{t-1}, [E y_{t-1}; c]) with h'_0 = tanh(V' c), c = tanh(V h_N).

    The output reads h'_t, y_{t-1} and c. `summary` is V, `bridge` holds V'. c enters both gates and the candidate, as
    in the authors' code.
    """

    computation_order = ("c", "h_t")

    def __init__(self, settings: ChoSettings, target_size: int) -> None:
        super().__init__()
        size, word_size = settings.size, settings.embedding_size
        self.embedding = settings.make_embedding(target_size)
        self.summary = nn.Linear(settings.memory_size, size)
        self.bridge = settings.make_bridge(size)
        self.recurrent = settings.make_recurrent(word_size + size)
        self.output = DeepOutput(settings, size, target_size)
        self.dropout = nn.Dropout(settings.dropout)
        settings.tie_weights(self.embedding, self.output.W_o, "maxout gives")

    def start(self, encoded: Encoded) -> ChoState:
        """Return c, computed from the top layer's last state, and h'_0 of every layer, computed from c."""
        c = torch.tanh(self.summary(hidden_state(encoded.state[-1])))
        return ChoState(c, self.bridge.from_vector(c))

    def vocabulary_layers(self) -> list[nn.Module]:
        """Return E and W_o."""
        return [self.embedding, self.output.W_o]

    def forward(self, encoded: Encoded, target_in: Tensor) -> Decoded:
        """Return logits (B, T, V) of target_in (B, T)."""
        return Decoded(self.output(*self._compute_readout_inputs(encoded, target_in)), None)

    def hidden_states(self, encoded: Encoded, target_in: Tensor) -> tuple[Tensor, None]:
        """Return the maxout activations."""
        return self.output.compute_maxout(*self._compute_readout_inputs(encoded, target_in)), None

    def _compute_readout_inputs(self, encoded: Encoded, target_in: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run all steps in parallel, as there is no attention, on target_in (B, T).

        Returns:
            What the readout takes: h'_t (B, T, n), embedded tokens (B, T, m), and c, (B, T, n).
        """
        words = self.dropout(self.embedding(target_in))
        state = self.start(encoded)
        c = state.context[:, None].expand(-1, words.shape[1], -1)
        lengths = torch.full((len(words),), words.shape[1], device=words.device)
        h, _ = self.recurrent(torch.cat((words, c), -1), lengths, state.recurrent)
        return h, words, c

    def step(self, state: ChoState, tokens: Tensor) -> tuple[Tensor, ChoState, None]:
        """Feed tokens (B,); return log-probabilities (B, V) and the new state."""
        word = self.dropout(self.embedding(tokens))
        h, recurrent = self.recurrent.step(torch.cat((word, state.context), -1), state.recurrent)
        logits = self.output(h, word, state.context)
        return log_probs(logits), ChoState(state.context, recurrent), None


def build(settings: ChoSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> Seq2Seq:
    """Build the model from its settings."""
    decoder = ChoDecoder(settings, target_size)
    model = Seq2Seq(RecurrentEncoder(settings, source_size), decoder, criterion)
    if settings.initialisation == "paper":
        init_orthogonal_(model)
    return model
