"""Xu et al. 2015, Show, attend and tell: soft attention with a gate and the doubly stochastic penalty.

The order of a step is h_{t-1} → α_t → ẑ_t → h_t; the annotations a_i are the encoder's memory: words, or cells of an
image grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.config import NonNegativeFloat
from regard.models.base import CrossEntropy, Decoded, Decoder, Encoded, Encoder, Seq2Seq
from regard.models.rnn_common import AdditiveScoreSettings, RecurrentEncoder, SoftAttentionSettings, StepwiseDecoder
from regard.nn import Attended, Attention, Memory, State
from regard.special_tokens import PAD


@dataclass(frozen=True, kw_only=True)
class XuBaseSettings(AdditiveScoreSettings):
    """Keys that the soft and the hard recipes have in common, over text and over images."""

    cell: Literal["gru", "lstm", "elman"] = "lstm"
    gate: bool = True


@dataclass(frozen=True, kw_only=True)
class XuSettings(XuBaseSettings, SoftAttentionSettings):
    """The `model` section of `xu2015-soft`."""

    doubly_stochastic: NonNegativeFloat = 1.0


class XuState(NamedTuple):
    """State between two steps: the memory with projected keys, h_{t-1} of each layer, and the index of the step.

    `soft_mask` (B,), for hard attention only: True for rows that use the expected context instead of one position.
    """

    memory: Memory
    recurrent: list[State]
    step: int | Tensor  # one for all rows, or (B,)
    soft_mask: Tensor | None = None


class XuOutput(nn.Module):
    """Output layer p(y_t) ∝ exp(L_o(E y_{t-1} + L_h h_t + L_z ẑ_t)) (eq. 7)."""

    def __init__(self, settings: XuBaseSettings, vocabulary_size: int) -> None:
        super().__init__()
        self.L_h = nn.Linear(settings.size, settings.embedding_size)
        self.L_z = nn.Linear(settings.memory_size, settings.embedding_size, bias=False)
        self.L_o = nn.Linear(settings.embedding_size, vocabulary_size)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, state: Tensor, word: Tensor, context: Tensor) -> Tensor:
        """Return logits (…, V).

        Args:
            state: decoder states (…, n).
            word: embedded tokens (…, m).
            context: contexts (…, D).
        """
        logits: Tensor = self.L_o(self.dropout(word + self.L_h(state) + self.L_z(context)))
        return logits


class XuDecoder(StepwiseDecoder):
    """Xu's decoder: h_t = LSTM([E y_{t-1}; ẑ_t], h_{t-1}), ẑ_t = β_t Σ_i α_ti a_i.

    The gate β_t = σ(f_β(h_{t-1})) is a scalar (section 4.2.1).
    """

    def __init__(self, settings: XuBaseSettings, target_size: int, attention: Attention) -> None:
        super().__init__()
        word_size, memory_size = settings.embedding_size, settings.memory_size
        self.embedding = settings.make_embedding(target_size)
        self.attention = attention
        output = XuOutput(settings, target_size)  # this order decides the weights of a seed
        self.recurrent = settings.make_recurrent(word_size + memory_size)
        self.bridge = settings.make_bridge(memory_size)
        self.output = output
        self.dropout = nn.Dropout(settings.dropout)
        self.gate = nn.Linear(settings.size, 1) if settings.gate else None
        settings.tie_weights(self.embedding, output.L_o, "the output reads")

    def start(self, encoded: Encoded) -> XuState:
        """Return h_0 and c_0, computed from the mean annotation (section 3.1.2); the keys are projected here, once."""
        values, mask = encoded.memory.values, encoded.memory.mask[..., None]
        mean = (values * mask).sum(1) / mask.sum(1).clamp(min=1)
        return XuState(self.attention.prepare(encoded.memory), self.bridge.from_vector(mean), 0)

    def attend(self, state: XuState) -> Attended:
        """Attend with h_{t-1}."""
        attended: Attended = self.attention(self.plot_state(state)[:, None], state.memory, state.step)
        return attended

    def step_from_embedding(self, state: XuState, word: Tensor) -> tuple[XuState, Attended, Tensor]:
        """Run one step on an embedded token, (B, m).

        Returns:
            The new state, the attention (α_t, and ẑ_t / β_t as its context), and [h_t; β_t], (B, n+1).
        """
        before = self.plot_state(state)  # h_{t-1}
        beta = torch.ones_like(before[:, :1]) if self.gate is None else torch.sigmoid(self.gate(before))
        attended = self.attend(state)
        h, recurrent = self.recurrent.step(torch.cat((word, beta * attended.context[:, 0]), -1), state.recurrent)
        memory = self.attention.update_coverage(state.memory, before[:, None], attended)
        new_state = state._replace(memory=memory, recurrent=recurrent, step=state.step + 1)
        return new_state, attended, torch.cat((h, beta), -1)

    def compute_logits(self, features: Tensor, words: Tensor, attended: Attended, memory: Memory) -> Tensor:
        """Return logits (B, T, V) from features [h_t; β_t] (B, T, n+1)."""
        h, beta = features.tensor_split([-1], -1)
        logits: Tensor = self.output(h, words, beta * attended.context)
        return logits

    def vocabulary_layers(self) -> list[nn.Module]:
        """Return E and L_o."""
        return [self.embedding, self.output.L_o]


class XuModel(Seq2Seq):
    """Soft attention with the doubly stochastic penalty λ Σ_i (1 − Σ_t α_ti)² (eq. 14).

    It makes the model attend to every source position about once.
    """

    def __init__(self, encoder: Encoder, decoder: Decoder, criterion: CrossEntropy, doubly_stochastic: float) -> None:
        super().__init__(encoder, decoder, criterion)
        self.doubly_stochastic = doubly_stochastic

    def decode_and_loss(self, encoded: Encoded, target_in: Tensor, target_out: Tensor) -> tuple[Tensor, Decoded]:
        """Return the sum of cross-entropy and penalty, and the decoder output."""
        total, decoded = super().decode_and_loss(encoded, target_in, target_out)
        assert decoded.attended is not None
        if self.doubly_stochastic:
            weights = decoded.attended.dense(encoded.memory.mask.shape[1])
            penalties = _doubly_stochastic_penalty(weights, encoded.memory.mask, target_out != PAD)
            total = total + self.doubly_stochastic * penalties.sum()
        return total, decoded


def _doubly_stochastic_penalty(weights: Tensor, source_mask: Tensor, target_mask: Tensor) -> Tensor:
    """Return Σ_i (1 − Σ_t α_ti)² of each sentence, (B,), for weights (B, T, S) and the masks of both sides."""
    attention_sum = (weights * target_mask[..., None]).sum(1)  # (B, S)
    return ((1 - attention_sum) ** 2 * source_mask).sum(1)


def build(settings: XuSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> Seq2Seq:
    """Build the soft-attention model from its settings."""
    decoder = XuDecoder(settings, target_size, settings.make_attention())
    return XuModel(RecurrentEncoder(settings, source_size), decoder, criterion, settings.doubly_stochastic)
