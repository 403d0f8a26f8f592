"""Bahdanau, Cho & Bengio 2015, Neural machine translation by jointly learning to align and translate.

The order of a step is s_{i-1} → α_i → c_i → s_i; equations are those of the paper's appendix A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.config import PositiveInt
from regard.models.base import Encoded, Encoder, Seq2Seq
from regard.models.losses import CrossEntropy
from regard.models.rnn_common import (
    AdditiveScoreSettings,
    Bridge,
    DeepOutput,
    RecurrentInitSettings,
    SoftAttentionSettings,
    StepwiseDecoder,
    build_attention,
    build_encoder,
    init_orthogonal_,
    make_embedding,
    tie_weights,
)
from regard.nn import Attended, Attention, Memory, Recurrent, State


@dataclass(frozen=True, kw_only=True)
class BahdanauSettings(AdditiveScoreSettings, SoftAttentionSettings, RecurrentInitSettings):
    """The `model` section of `bahdanau2015`."""

    maxout: PositiveInt | None = None
    readout: Literal["previous", "current"] = "previous"


class BahdanauState(NamedTuple):
    """State between two steps: the memory with projected keys, s_{i-1} of each layer, and the index of the step."""

    memory: Memory
    recurrent: list[State]
    step: int | Tensor  # one for all rows, or (B,)


class BahdanauDecoder(StepwiseDecoder):
    """Bahdanau's decoder: α_i from s_{i-1}, then s_i = f(s_{i-1}, [E y_{i-1}; c_i]), then the deep output.

        α_ij = softmax_j a(s_{i-1}, h_j) (eq. 6),   c_i = Σ_j α_ij h_j (eq. 5)

    The readout takes s_{i-1}, as in the appendix and the authors' code; with `readout="current"` it takes s_i, as in
    the main text's eq. 4.
    """

    output: DeepOutput

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
        super().__init__(embedding, attention, recurrent, bridge, output, dropout)
        self.readout = readout

    def start(self, encoded: Encoded) -> BahdanauState:
        """Return s_0, computed from the encoder's last state; the keys are projected here, once."""
        return BahdanauState(self.attention.prepare(encoded.memory), self.bridge(encoded.state), 0)

    def step_from_embedding(self, state: BahdanauState, word: Tensor) -> tuple[BahdanauState, Attended, Tensor]:
        """Run one step on an embedded token (B, m).

        Returns:
            The new state, the attention (α_i, c_i), and the state that the readout takes, (B, n).
        """
        before = self.plot_state(state)  # s_{i-1}
        attended: Attended = self.attention(before[:, None], state.memory, state.step)
        memory = self.attention.update_coverage(state.memory, before[:, None], attended)
        after, recurrent = self.recurrent.step(torch.cat((word, attended.context[:, 0]), -1), state.recurrent)
        readout_state = before if self.readout == "previous" else after
        return BahdanauState(memory, recurrent, state.step + 1), attended, readout_state

    def compute_logits(self, features: Tensor, words: Tensor, attended: Attended, memory: Memory) -> Tensor:
        """Return logits (B, T, V) of the deep output, from the states that the readout takes."""
        logits: Tensor = self.output(features, words, attended.context)
        return logits

    def hidden_states(self, encoded: Encoded, target_in: Tensor) -> tuple[Tensor, Attended]:
        """Return the maxout activations t_i (B, T, ·), and the attention."""
        features, words, attended = self.run_steps(self.start(encoded), target_in)
        return self.output.compute_maxout(features, words, attended.context), attended

    def vocabulary_layers(self) -> list[nn.Module]:
        """Return E and W_o."""
        return [self.embedding, self.output.W_o]


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
    size, word_size = settings.size, settings.embedding_size
    maxout = max(1, size // 2) if settings.maxout is None else settings.maxout
    output = DeepOutput(size, word_size, value_size, maxout, target_size, settings.dropout)
    decoder_module = decoder(
        make_embedding(target_size, word_size),
        build_attention(settings, key_size) if attention is None else attention,
        settings.make_recurrent(word_size + value_size),
        settings.make_bridge(size),
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
