"""Bahdanau, Cho & Bengio 2015, Neural machine translation by jointly learning to align and translate.

The order of a step is s_{i-1} → α_i → c_i → s_i; equations are those of the paper's appendix A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.models.base import CrossEntropy, Encoded, Seq2Seq
from regard.models.rnn_common import (
    AdditiveScoreSettings,
    DeepOutput,
    DeepOutputSettings,
    RecurrentEncoder,
    SoftAttentionSettings,
    StepwiseDecoder,
    init_orthogonal_,
)
from regard.nn import Attended, Attention, Memory, State


@dataclass(frozen=True, kw_only=True)
class BahdanauSettings(AdditiveScoreSettings, SoftAttentionSettings, DeepOutputSettings):
    """The `model` section of `bahdanau2015`."""

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

    def __init__(self, settings: BahdanauSettings, target_size: int, attention: Attention | None = None) -> None:
        super().__init__()
        word_size, memory_size = settings.embedding_size, settings.memory_size
        output = DeepOutput(settings, memory_size, target_size)  # this order decides the weights of a seed
        self.embedding = settings.make_embedding(target_size)
        self.attention = attention or settings.make_attention()
        self.recurrent = settings.make_recurrent(word_size + memory_size)
        self.bridge = settings.make_bridge(settings.size)
        self.output = output
        self.dropout = nn.Dropout(settings.dropout)
        self.readout = settings.readout
        settings.tie_weights(self.embedding, output.W_o, "maxout gives")

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
    model = Seq2Seq(RecurrentEncoder(settings, source_size), decoder(settings, target_size, attention), criterion)
    if settings.initialisation == "paper":
        init_paper_(model)
    return model


def init_paper_(model: Seq2Seq) -> None:
    """Initialise the weights as in the paper (appendix B.1); those of the score are from N(0, 0.001²)."""
    init_orthogonal_(model)
    for name, parameter in model.decoder.named_parameters():
        if name.startswith("attention.score."):
            nn.init.normal_(parameter, std=0.001 if parameter.dim() > 1 else 0.0)
