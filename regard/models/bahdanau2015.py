"""Bahdanau, Cho & Bengio 2015, Neural machine translation by jointly learning to align and translate.

The order of a step is s_{i-1} → α_i → c_i → s_i; equations are those of the paper's appendix A.
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
    Bridge,
    DecoderUnroller,
    DeepOutput,
    RecurrentInitSettings,
    SoftAttentionSettings,
    build_encoder,
    init_orthogonal_,
    make_embedding,
    tie_weights,
    unroll_decoder,
)
from regard.models.rnn_common import build_attention as attention_of
from regard.models.settings_checks import check_positive
from regard.nn import Attended, Attention, Memory, Recurrent, State, hidden_state


@dataclass(frozen=True, kw_only=True)
class BahdanauSettings(SoftAttentionSettings, RecurrentInitSettings):
    """The `model` section of `bahdanau2015`."""

    score: str = "concat"
    attention: int | None = None
    maxout: int | None = None
    readout: Literal["previous", "current"] = "previous"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "attention", "maxout")

    @property
    def score_hidden_size(self) -> int:
        """Number n' of hidden units of a concat score."""
        return self.size if self.attention is None else self.attention


class BahdanauState(NamedTuple):
    """State between two steps: the memory with projected keys, s_{i-1} of each layer, and the index of the step."""

    memory: Memory
    recurrent: list[State]
    step: int | Tensor  # one for all rows, or (B,)


class BahdanauDecoder(Decoder):
    """Bahdanau's decoder: α_i from s_{i-1}, then s_i = f(s_{i-1}, [E y_{i-1}; c_i]), then the deep output.

    The readout takes s_{i-1}, as in the appendix and the authors' code; with `readout="current"` it takes s_i, as in
    the main text's eq. 4.
    """

    supports_shared_memory = True
    computation_order = ("h_{t-1}", "a_t", "c_t", "h_t")

    def __init__(
        self,
        embedding: nn.Embedding,
        attention: Attention,
        recurrent: Recurrent,
        bridge: Bridge,
        output: DeepOutput,
        dropout: float = 0.0,
        readout: Literal["previous", "current"] = "previous",
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.attention = attention
        self.recurrent = recurrent
        self.bridge = bridge
        self.output = output
        self.dropout = nn.Dropout(dropout)
        self.readout = readout
        self.loop: DecoderUnroller = unroll_decoder  # replaced by a faster implementation if there is one

    def start(self, encoded: Encoded) -> BahdanauState:
        """Return s_0, computed from the encoder's last state; the keys are projected here, once."""
        return BahdanauState(self.attention.prepare(encoded.memory), self.bridge(encoded.state), 0)

    def step_from_embedding(self, state: BahdanauState, word: Tensor) -> tuple[BahdanauState, Attended, Tensor]:
        """Run one step on an embedded token (B, m).

        Return the new state, the attention, and the state that the readout takes.
        """
        before = hidden_state(state.recurrent[-1])
        attended: Attended = self.attention(before[:, None], state.memory, state.step)
        memory = self.attention.update_coverage(state.memory, before[:, None], attended)
        after, recurrent = self.recurrent.step(torch.cat((word, attended.context[:, 0]), -1), state.recurrent)
        readout_state = before if self.readout == "previous" else after
        return BahdanauState(memory, recurrent, state.step + 1), attended, readout_state

    def plot_state(self, state: BahdanauState) -> Tensor:
        """Return h of the top layer."""
        return hidden_state(state.recurrent[-1])

    def vocabulary_layers(self) -> list[nn.Module]:
        """Return E and W_o."""
        return [self.embedding, self.output.W_o]

    def forward(self, encoded: Encoded, target_in: Tensor) -> Decoded:
        """Return logits (B, T, V) of target_in (B, T): steps run one by one, the readout in one batch."""
        readout_inputs, attended = self._compute_readout_inputs(encoded, target_in)
        return Decoded(self.output(*readout_inputs), attended)

    def hidden_states(self, encoded: Encoded, target_in: Tensor) -> tuple[Tensor, Attended]:
        """Return the maxout activations t_i."""
        readout_inputs, attended = self._compute_readout_inputs(encoded, target_in)
        return self.output.compute_maxout(*readout_inputs), attended

    def _compute_readout_inputs(
        self, encoded: Encoded, target_in: Tensor
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Attended]:
        """Run all steps; return the states, embedded tokens and contexts that the readout takes, and the attention."""
        words = self.dropout(self.embedding(target_in))
        readout_states, attended = self.loop(self, self.start(encoded), words)
        return (readout_states, words, attended.context), attended

    def step(self, state: BahdanauState, tokens: Tensor) -> tuple[Tensor, BahdanauState, Attended]:
        """Feed tokens (B,); return log-probabilities (B, V), the new state and the attention."""
        word = self.dropout(self.embedding(tokens))
        state, attended, readout_state = self.step_from_embedding(state, word)
        logits = self.output(readout_state[:, None], word[:, None], attended.context)[:, 0]
        return log_probs(logits), state, attended


def build(
    settings: BahdanauSettings,
    source_size: int,
    target_size: int,
    criterion: CrossEntropy,
    *,
    attention: Attention | None = None,
    decoder: type[BahdanauDecoder] = BahdanauDecoder,
) -> Seq2Seq:
    """Build the model from its settings; each annotation is a key and a value, `settings.memory_size` wide.

    Pass `attention`, for states of width `size`, or a subclass as `decoder` to replace the ones of the settings.
    """
    width, source_encoder = settings.memory_size, build_encoder(settings, source_size)
    return build_from_encoder(settings, source_encoder, width, width, target_size, criterion, attention, decoder)


def build_from_encoder(
    settings: BahdanauSettings,
    encoder: Encoder,
    key_size: int,
    value_size: int,
    target_size: int,
    criterion: CrossEntropy,
    attention: Attention | None = None,
    decoder: type[BahdanauDecoder] = BahdanauDecoder,
) -> Seq2Seq:
    """Build Bahdanau's decoder over an encoder whose memory has keys and values of the given widths."""
    size, word_size, cell = settings.size, settings.embedding_size, CELLS[settings.cell]
    maxout = max(1, size // 2) if settings.maxout is None else settings.maxout
    output = DeepOutput(size, word_size, value_size, maxout, target_size, settings.dropout)
    decoder_module = decoder(
        make_embedding(target_size, word_size),
        attention_of(settings, size, key_size, settings.score_hidden_size) if attention is None else attention,
        Recurrent(
            cell, word_size + value_size, size, settings.layers, dropout=settings.dropout, residual=settings.residual
        ),
        Bridge(size, size, settings.layers, cell.num_state_tensors),
        output,
        settings.dropout,
        settings.readout,
    )
    if settings.tie:
        tie_weights(decoder_module.embedding, output.W_o, "maxout gives")
    model = Seq2Seq(encoder, decoder_module, criterion)
    if settings.initialisation == "paper":
        init_orthogonal_(model)
        for name, parameter in decoder_module.attention.named_parameters():
            if name.startswith("score."):
                nn.init.normal_(parameter, std=0.001 if parameter.dim() > 1 else 0.0)
    return model
