"""Xu et al. 2015, Show, attend and tell: soft attention, with its gate and its penalty.

The order of a step is h_{t-1} → α_t → ẑ_t → h_t; the annotations a_i are whatever the encoder leaves, words or places
of an image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.models.base import Decoded, Decoder, Encoded, Encoder, Seq2Seq, log_probs
from regard.models.losses import CrossEntropy
from regard.models.rnn_common import (
    CELLS,
    AttentionScoreSettings,
    Bridge,
    DecoderUnroller,
    SoftAttentionSettings,
    build_attention,
    build_encoder,
    make_embedding,
    tie_weights,
    unroll_decoder,
)
from regard.models.settings_checks import check_nonnegative, check_positive
from regard.nn import Attended, Attention, Memory, Recurrent, State, hidden_state
from regard.special_tokens import PAD


@dataclass(frozen=True, kw_only=True)
class XuBaseSettings(AttentionScoreSettings):
    """What the soft and the hard recipes share, over words and over images."""

    cell: Literal["gru", "lstm", "elman"] = "lstm"
    score: Literal["dot", "general", "concat", "location"] = "concat"
    attention: int | None = None
    gate: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "attention")

    @property
    def score_hidden_size(self) -> int:
        """Hidden units of a concat score."""
        return self.size if self.attention is None else self.attention


@dataclass(frozen=True, kw_only=True)
class XuSettings(XuBaseSettings, SoftAttentionSettings):
    """The `model` section of `xu2015-soft`."""

    doubly_stochastic: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_nonnegative(self, "doubly_stochastic")


class XuState(NamedTuple):
    """Between two steps: the memory with its keys projected, h_{t-1} of each layer, and the number of the step.

    `soft` B, for hard attention only: the rows that take the expectation instead of one place.
    """

    memory: Memory
    recurrent: list[State]
    step: int | Tensor  # of all rows, or B of each
    soft_mask: Tensor | None = None


class XuOutput(nn.Module):
    """p(y_t) ∝ exp(L_o(E y_{t-1} + L_h h_t + L_z ẑ_t)) (eq. 7)."""

    def __init__(
        self, state_size: int, embedding_size: int, context_size: int, vocabulary_size: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.L_h = nn.Linear(state_size, embedding_size)
        self.L_z = nn.Linear(context_size, embedding_size, bias=False)
        self.L_o = nn.Linear(embedding_size, vocabulary_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, state: Tensor, word: Tensor, context: Tensor) -> Tensor:
        """States …,n, embedded words …,m, contexts …,D -> logits …,V."""
        logits: Tensor = self.L_o(self.dropout(word + self.L_h(state) + self.L_z(context)))
        return logits


class XuDecoder(Decoder):
    """ẑ_t = β_t Σ_i α_ti a_i with the scalar gate β_t = σ(f_β(h_{t-1})), then h_t = LSTM([E y_{t-1}; ẑ_t], h_{t-1})."""

    supports_shared_memory = True
    computation_order = ("h_{t-1}", "a_t", "c_t", "h_t")

    def __init__(
        self,
        embedding: nn.Embedding,
        attention: Attention,
        recurrent: Recurrent,
        bridge: Bridge,
        output: XuOutput,
        gate: nn.Linear | None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.attention = attention
        self.recurrent = recurrent
        self.bridge = bridge
        self.output = output
        self.gate = gate
        self.dropout = nn.Dropout(dropout)
        self.loop: DecoderUnroller = unroll_decoder  # a faster one may take its place

    def start(self, encoded: Encoded) -> XuState:
        """h_0 and c_0 from the mean annotation (section 3.1.2); the keys are projected here, once."""
        values, mask = encoded.memory.values, encoded.memory.mask[..., None]
        mean = (values * mask).sum(1) / mask.sum(1).clamp(min=1)
        return XuState(self.attention.prepare(encoded.memory), self.bridge.from_vector(mean), 0)

    def attend(self, state: XuState) -> Attended:
        """What h_{t-1} sees."""
        attended: Attended = self.attention(self.plot_state(state)[:, None], state.memory, state.step)
        return attended

    def step_from_embedding(self, state: XuState, word: Tensor) -> tuple[XuState, Attended, Tensor]:
        """One step on an embedded word B,m: the new state, what was attended to, and [h_t; β_t] B,n+1 to read."""
        before = self.plot_state(state)
        beta = torch.ones_like(before[:, :1]) if self.gate is None else torch.sigmoid(self.gate(before))
        attended = self.attend(state)
        h, recurrent = self.recurrent.step(torch.cat((word, beta * attended.context[:, 0]), -1), state.recurrent)
        memory = self.attention.update_coverage(state.memory, before[:, None], attended)
        after = state._replace(memory=memory, recurrent=recurrent, step=state.step + 1)
        return after, attended, torch.cat((h, beta), -1)

    def compute_logits(self, state_and_gate: Tensor, word: Tensor, attended: Attended, memory: Memory) -> Tensor:
        """Logits B,T,V of [h_t; β_t] B,T,n+1, embedded words B,T,m and what was attended to."""
        h, beta = state_and_gate.tensor_split([-1], -1)
        logits: Tensor = self.output(h, word, beta * attended.context)
        return logits

    def plot_state(self, state: XuState) -> Tensor:
        """The top layer's h."""
        return hidden_state(state.recurrent[-1])

    def vocabulary_layers(self) -> list[nn.Module]:
        """E and L_o."""
        return [self.embedding, self.output.L_o]

    def decode_from_state(self, state: XuState, target_in: Tensor) -> Decoded:
        """A whole target from a state on: the steps one by one, the output of all of them at once."""
        words = self.dropout(self.embedding(target_in))
        gated, attended = self.loop(self, state, words)
        return Decoded(self.compute_logits(gated, words, attended, state.memory), attended)

    def forward(self, encoded: Encoded, target_in: Tensor) -> Decoded:
        """Target_in B,T -> logits B,T,V."""
        return self.decode_from_state(self.start(encoded), target_in)

    def step(self, state: XuState, tokens: Tensor) -> tuple[Tensor, XuState, Attended]:
        """Tokens B -> log-probabilities B,V."""
        word = self.dropout(self.embedding(tokens))
        after, attended, gated = self.step_from_embedding(state, word)
        logits = self.compute_logits(gated[:, None], word[:, None], attended, state.memory)
        return log_probs(logits[:, 0]), after, attended


class XuModel(Seq2Seq):
    """Adds λ Σ_i (1 − Σ_t α_ti)² to the loss of each sentence (eq. 14): every place should be looked at once."""

    def __init__(self, encoder: Encoder, decoder: Decoder, criterion: CrossEntropy, doubly_stochastic: float) -> None:
        super().__init__(encoder, decoder, criterion)
        self.doubly_stochastic = doubly_stochastic

    def decode_and_loss(self, encoded: Encoded, target_in: Tensor, target_out: Tensor) -> tuple[Tensor, Decoded]:
        """Cross-entropy and penalty."""
        total, decoded = super().decode_and_loss(encoded, target_in, target_out)
        assert decoded.attended is not None
        if self.doubly_stochastic:
            weights = decoded.attended.dense(encoded.memory.mask.shape[1])
            total = (
                total
                + self.doubly_stochastic
                * _doubly_stochastic_penalty(weights, encoded.memory.mask, target_out != PAD).sum()
            )
        return total, decoded


def _doubly_stochastic_penalty(weights: Tensor, source_mask: Tensor, target_mask: Tensor) -> Tensor:
    """Σ_i (1 − Σ_t α_ti)² of each sentence: weights B,T,S and the masks of both sides -> B."""
    attention_sum = (weights * target_mask[..., None]).sum(1)  # B,S
    return ((1 - attention_sum) ** 2 * source_mask).sum(1)


def build(settings: XuSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> Seq2Seq:
    """Soft attention."""
    decoder_attention = build_attention(settings, settings.size, settings.memory_size, settings.score_hidden_size)
    decoder = XuDecoder(*build_decoder_parts(settings, target_size, decoder_attention))
    return XuModel(build_encoder(settings, source_size), decoder, criterion, settings.doubly_stochastic)


def build_decoder_parts(
    settings: XuBaseSettings, target_size: int, attention: Attention
) -> tuple[nn.Embedding, Attention, Recurrent, Bridge, XuOutput, nn.Linear | None, float]:
    """What a decoder of the settings is made of."""
    size, word_size, memory_size, cell = (
        settings.size,
        settings.embedding_size,
        settings.memory_size,
        CELLS[settings.cell],
    )
    words = make_embedding(target_size, word_size)
    output = XuOutput(size, word_size, memory_size, target_size, settings.dropout)
    if settings.tie:  # L_o reads vectors as wide as a word's
        tie_weights(words, output.L_o, "the output reads")
    return (
        words,
        attention,
        Recurrent(
            cell, word_size + memory_size, size, settings.layers, dropout=settings.dropout, residual=settings.residual
        ),
        Bridge(memory_size, size, settings.layers, cell.num_state_tensors),
        output,
        nn.Linear(size, 1) if settings.gate else None,
        settings.dropout,
    )
