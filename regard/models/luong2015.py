"""Luong, Pham & Manning 2015, Effective approaches to attention-based neural machine translation.

The order of a step is h_t → a_t → c_t → h̃_t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.models.base import CrossEntropy, Encoded, Seq2Seq, log_probs
from regard.models.rnn_common import (
    DecoderUnroller,
    RecurrentDecoder,
    RecurrentEncoder,
    RecurrentInitSettings,
    SoftAttentionSettings,
    init_uniform_,
    unroll_decoder,
)
from regard.nn import Attended, Attention, Memory, State


@dataclass(frozen=True, kw_only=True)
class LuongSettings(SoftAttentionSettings, RecurrentInitSettings):
    """The `model` section of the `luong2015` recipes."""

    cell: Literal["gru", "lstm", "elman"] = "lstm"
    bidirectional: bool = False
    reverse: bool = True
    input_feeding: bool = True


class LuongState(NamedTuple):
    """State between two steps: the memory with projected keys, each layer's state, h̃_{t-1}, and the step index."""

    memory: Memory
    recurrent: list[State]
    attentional_vector: Tensor
    step: int | Tensor  # one for all rows, or (B,)


class LuongDecoder(RecurrentDecoder):
    """Luong's decoder: h_t from y_{t-1}, a_t and c_t from h_t, h̃_t = tanh(W_c [c_t; h_t]), softmax(W_s h̃_t) (eq. 5, 6).

    With input feeding the first layer reads [E y_{t-1}; h̃_{t-1}], h̃_0 = 0 (section 3.3).
    """

    supports_shared_memory = True
    computation_order = ("h_t", "a_t", "c_t", "h̃_t")

    def __init__(self, settings: LuongSettings, target_size: int, attention: Attention | None = None) -> None:
        super().__init__()
        size, word_size, memory_size = settings.size, settings.embedding_size, settings.memory_size
        self.input_feeding = settings.input_feeding
        self.embedding = settings.make_embedding(target_size)
        self.recurrent = settings.make_recurrent(word_size + size if settings.input_feeding else word_size)
        self.attention = attention or settings.make_attention()
        self.W_c = nn.Linear(memory_size + size, size, bias=False)
        self.W_s = nn.Linear(size, target_size, bias=False)
        self.bridge = settings.make_state_map()
        self.dropout = nn.Dropout(settings.dropout)
        settings.tie_weights(self.embedding, self.W_s, "h̃ has")
        self.unroll: DecoderUnroller = unroll_decoder  # replaced by a faster implementation if there is one

    def start(self, encoded: Encoded) -> LuongState:
        """Return the encoder's last states and h̃_0 = 0; the keys are projected here, once."""
        keys = encoded.memory.keys
        attentional_vector = keys.new_zeros(keys.shape[0], self.W_c.out_features)
        return LuongState(self.attention.prepare(encoded.memory), self.bridge(encoded.state), attentional_vector, 0)

    def attend(self, h: Tensor, memory: Memory, step: int | Tensor) -> tuple[Tensor, Attended]:
        """Attend with h_t, and compute h̃_t = tanh(W_c [c_t; h_t]) (eq. 5).

        Args:
            h: h_t of the top layer, (B, T, H).
            memory: encoder memory with keys h̄_s, prepared by `start`.
            step: target index of the first h_t, one for all rows or (B,).

        Returns:
            h̃_t (B, T, H), and the attention a_t (B, T, S) with its contexts c_t (B, T, K).
        """
        attended: Attended = self.attention(h, memory, step)
        return torch.tanh(self.W_c(torch.cat((attended.context, h), -1))), attended

    def step_from_embedding(self, state: LuongState, word: Tensor) -> tuple[LuongState, Attended, Tensor]:
        """Run one step on an embedded token (B, m), m being the embedding size.

        Returns:
            The new state, the attention (T = 1), and h̃_t (B, H).
        """
        x = torch.cat((word, state.attentional_vector), -1) if self.input_feeding else word
        h, recurrent = self.recurrent.step(self.dropout(x), state.recurrent)
        attentional_vectors, attended = self.attend(h[:, None], state.memory, state.step)
        memory = self.attention.update_coverage(state.memory, h[:, None], attended)
        attentional_vector = attentional_vectors[:, 0]
        return LuongState(memory, recurrent, attentional_vector, state.step + 1), attended, attentional_vector

    def attentional_vector(self, state: LuongState) -> Tensor:
        """Return h̃_t, which is also the input of the next step."""
        return state.attentional_vector

    def vocabulary_layers(self) -> list[nn.Module]:
        """Return E and W_s."""
        return [self.embedding, self.W_s]

    def hidden_states(self, encoded: Encoded, target_in: Tensor) -> tuple[Tensor, Attended]:
        """Return h̃_t of all steps, (B, T, H), and the attention."""
        words, state = self.embedding(target_in), self.start(encoded)
        if self.input_feeding or self.attention.coverage is not None:  # each step depends on the previous attention
            return self.unroll(self, state, words)
        lengths = torch.full((len(words),), words.shape[1], device=words.device)
        h, _ = self.recurrent(self.dropout(words), lengths, state.recurrent)
        return self.attend(h, state.memory, state.step)

    def step(self, state: LuongState, tokens: Tensor) -> tuple[Tensor, LuongState, Attended]:
        """Feed tokens (B,); return log-probabilities (B, V), the new state and the attention."""
        state, attended, attentional_vector = self.step_from_embedding(state, self.embedding(tokens))
        return log_probs(self.W_s(attentional_vector)), state, attended


def build(
    settings: LuongSettings,
    source_size: int,
    target_size: int,
    criterion: CrossEntropy,
    *,
    attention: Attention | None = None,
    decoder: type[LuongDecoder] = LuongDecoder,
) -> Seq2Seq:
    """Build the model from its settings.

    Pass `attention`, for queries of width `size` and keys of width `settings.memory_size`, or a subclass as `decoder`
    to replace the ones of the settings.
    """
    target_decoder = decoder(settings, target_size, attention)
    model = Seq2Seq(RecurrentEncoder(settings, source_size), target_decoder, criterion)
    if settings.initialisation == "paper":
        init_uniform_(model, 0.1)
    return model
