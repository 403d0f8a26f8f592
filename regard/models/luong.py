"""Luong, Pham & Manning 2015, Effective approaches to attention-based neural machine translation.

The order of a step is h_t → a_t → c_t → h̃_t.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.models.criterion import CrossEntropy
from regard.models.recurrent import (
    CELLS,
    AttentiveSettings,
    InitialisedSettings,
    embedding,
    encoder,
    straight,
    tie,
    uniform,
)
from regard.models.recurrent import attention as attention_of
from regard.models.seq2seq import Decoded, Decoder, Encoded, Seq2Seq, log_probs
from regard.nn import Attended, Attention, Memory, Recurrent, State, hidden, joined


@dataclass(frozen=True, kw_only=True)
class LuongSettings(AttentiveSettings, InitialisedSettings):
    """The `model` section of the `luong2015` recipes."""

    cell: Literal["gru", "lstm", "elman"] = "lstm"
    bidirectional: bool = False
    reverse: bool = True
    input_feeding: bool = True


class LuongState(NamedTuple):
    """Between two steps: the memory with its keys projected, each layer's state, h̃_{t-1}, and the step's number."""

    memory: Memory
    recurrent: list[State]
    fed: Tensor
    step: int | Tensor  # of all rows, or B of each


class LuongDecoder(Decoder):
    """h_t from y_{t-1}, a_t and c_t from h_t, then h̃_t = tanh(W_c [c_t; h_t]) (eq. 5) and softmax(W_s h̃_t) (eq. 6).

    With input feeding the first layer reads [E y_{t-1}; h̃_{t-1}], h̃_0 = 0 (section 3.3).
    """

    shares = True
    order = ("h_t", "a_t", "c_t", "h̃_t")

    def __init__(
        self,
        embedding: nn.Embedding,
        recurrent: Recurrent,
        attention: Attention,
        W_c: nn.Linear,
        W_s: nn.Linear,
        bridge: Callable[[Sequence[State]], list[State]] = list,
        dropout: float = 0.0,
        input_feeding: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.recurrent = recurrent
        self.attention = attention
        self.W_c = W_c
        self.W_s = W_s
        self.bridge = bridge
        self.dropout = nn.Dropout(dropout)
        self.input_feeding = input_feeding
        self.loop: Loop = one_by_one  # a faster one may take its place

    def start(self, encoded: Encoded) -> LuongState:
        """The encoder's last states and h̃_0 = 0; the keys are projected here, once."""
        keys = encoded.memory.keys
        fed = keys.new_zeros(keys.shape[0], self.W_c.out_features)
        return LuongState(self.attention.prepare(encoded.memory), self.bridge(encoded.state), fed, 0)

    def attend(self, h: Tensor, memory: Memory, step: int | Tensor) -> tuple[Tensor, Attended]:
        """H_t B,T,H -> h̃_t B,T,H and what was attended to."""
        attended: Attended = self.attention(h, memory, step)
        return torch.tanh(self.W_c(torch.cat((attended.context, h), -1))), attended

    def advance(self, state: LuongState, word: Tensor) -> tuple[LuongState, Attended]:
        """One step on an embedded word B,·; the new state holds h̃_t."""
        x = torch.cat((word, state.fed), -1) if self.input_feeding else word
        h, recurrent = self.recurrent.step(self.dropout(x), state.recurrent)
        fed, attended = self.attend(h[:, None], state.memory, state.step)
        memory = self.attention.follow(state.memory, h[:, None], attended)
        return LuongState(memory, recurrent, fed[:, 0], state.step + 1), attended

    def shown(self, state: LuongState) -> Tensor:
        """The top layer's h."""
        return hidden(state.recurrent[-1])

    def attentional(self, state: LuongState) -> Tensor:
        """h̃_t, which is fed to the next step, too."""
        return state.fed

    def vocabulary(self) -> list[nn.Module]:
        """E and W_s."""
        return [self.embedding, self.W_s]

    def forward(self, encoded: Encoded, target_in: Tensor) -> Decoded:
        """Target_in B,T -> logits B,T,V."""
        output, attended = self.features(encoded, target_in)
        return Decoded(self.W_s(output), attended)

    def features(self, encoded: Encoded, target_in: Tensor) -> tuple[Tensor, Attended]:
        """h̃_t of all steps."""
        words = self.embedding(target_in)
        state = self.start(encoded)
        waits = self.input_feeding or self.attention.coverage is not None
        return self.loop(self, state, words) if waits else self.all_at_once(state, words)

    def all_at_once(self, state: LuongState, words: Tensor) -> tuple[Tensor, Attended]:
        """Without input feeding attention waits for nothing: all h_t first, then one look for all of them."""
        lengths = torch.full((len(words),), words.shape[1], device=words.device)
        h, _ = self.recurrent(self.dropout(words), lengths, state.recurrent)
        return self.attend(h, state.memory, state.step)

    def step(self, state: LuongState, tokens: Tensor) -> tuple[Tensor, LuongState, Attended]:
        """Tokens B -> log-probabilities B,V."""
        state, attended = self.advance(state, self.embedding(tokens))
        return log_probs(self.W_s(state.fed)), state, attended


def one_by_one(decoder: LuongDecoder, state: LuongState, words: Tensor) -> tuple[Tensor, Attended]:
    """Input feeding, and coverage, make each step wait for the one before: words B,T,· -> h̃_t B,T,H, and the looks."""
    outputs, looks = [], []
    for word in words.unbind(1):
        state, attended = decoder.advance(state, word)
        outputs.append(state.fed)
        looks.append(attended)
    return torch.stack(outputs, 1), joined(looks)


Loop = Callable[[LuongDecoder, LuongState, Tensor], tuple[Tensor, Attended]]


def build(
    settings: LuongSettings,
    source_size: int,
    target_size: int,
    criterion: CrossEntropy,
    *,
    attention: Attention | None = None,
    decoder: type[LuongDecoder] = LuongDecoder,
) -> Seq2Seq:
    """The model of the settings; with an attention of one's own for states of `size`, or a decoder derived from this.

    The keys are `settings.memory_size` wide.
    """
    size, word_size, memory_size = settings.size, settings.word_size, settings.memory_size
    cell = CELLS[settings.cell]
    first = word_size + (size if settings.input_feeding else 0)
    writer = decoder(
        embedding(target_size, word_size),
        Recurrent(cell, first, size, settings.layers, dropout=settings.dropout, residual=settings.residual),
        attention_of(settings, size, memory_size, size) if attention is None else attention,
        nn.Linear(memory_size + size, size, bias=False),
        nn.Linear(size, target_size, bias=False),
        straight(settings),
        settings.dropout,
        settings.input_feeding,
    )
    if settings.tie:
        tie(writer.embedding, writer.W_s, "h̃ has")
    model = Seq2Seq(encoder(settings, source_size), writer, criterion)
    if settings.initialisation == "paper":
        uniform(model, 0.1)
    return model
