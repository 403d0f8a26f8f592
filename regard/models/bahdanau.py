"""Bahdanau, Cho & Bengio 2015, Neural machine translation by jointly learning to align and translate.

The order of a step is s_{i-1} → α_i → c_i → s_i; equations are those of the paper's appendix A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.models.checks import at_least_one
from regard.models.criterion import CrossEntropy
from regard.models.readout import DeepOutput
from regard.models.recurrent import (
    CELLS,
    AttentiveSettings,
    Bridge,
    InitialisedSettings,
    embedding,
    encoder,
    orthogonal,
    tie,
)
from regard.models.recurrent import attention as attention_of
from regard.models.seq2seq import Decoded, Decoder, Encoded, Encoder, Seq2Seq, log_probs
from regard.models.stepping import Loop, one_by_one
from regard.nn import Attended, Attention, Memory, Recurrent, State, hidden


@dataclass(frozen=True, kw_only=True)
class BahdanauSettings(AttentiveSettings, InitialisedSettings):
    """The `model` section of `bahdanau2015`."""

    score: Literal["dot", "general", "concat", "location"] = "concat"
    attention: int | None = None
    maxout: int | None = None
    readout: Literal["previous", "current"] = "previous"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "attention", "maxout")

    @property
    def hidden(self) -> int:
        """Hidden units n' of a concat score."""
        return self.size if self.attention is None else self.attention


class BahdanauState(NamedTuple):
    """Between two steps: the memory with its keys projected, s_{i-1} of each layer, and the number of the step."""

    memory: Memory
    recurrent: list[State]
    step: int | Tensor  # of all rows, or B of each


class BahdanauDecoder(Decoder):
    """α_i from s_{i-1}, then s_i = f(s_{i-1}, [E y_{i-1}; c_i]), then the deep output.

    The readout takes s_{i-1}, as the appendix and the authors' code do; `readout="current"` takes s_i, as the main
    text's eq. 4 says.
    """

    shares = True
    order = ("h_{t-1}", "a_t", "c_t", "h_t")

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
        self.loop: Loop = one_by_one  # a faster one may take its place

    def start(self, encoded: Encoded) -> BahdanauState:
        """s_0 from the encoder's last state; the keys are projected here, once."""
        return BahdanauState(self.attention.prepare(encoded.memory), self.bridge(encoded.state), 0)

    def advance(self, state: BahdanauState, word: Tensor) -> tuple[BahdanauState, Attended, Tensor]:
        """One step on an embedded word B,m: the new state, what was attended to, and the state the readout takes."""
        before = hidden(state.recurrent[-1])
        attended: Attended = self.attention(before[:, None], state.memory, state.step)
        memory = self.attention.follow(state.memory, before[:, None], attended)
        after, recurrent = self.recurrent.step(torch.cat((word, attended.context[:, 0]), -1), state.recurrent)
        shown = before if self.readout == "previous" else after
        return BahdanauState(memory, recurrent, state.step + 1), attended, shown

    def shown(self, state: BahdanauState) -> Tensor:
        """The top layer's h."""
        return hidden(state.recurrent[-1])

    def vocabulary(self) -> list[nn.Module]:
        """E and W_o."""
        return [self.embedding, self.output.W_o]

    def forward(self, encoded: Encoded, target_in: Tensor) -> Decoded:
        """Target_in B,T -> logits B,T,V: the steps one by one, the readout of all of them at once."""
        read, attended = self.taken(encoded, target_in)
        return Decoded(self.output(*read), attended)

    def features(self, encoded: Encoded, target_in: Tensor) -> tuple[Tensor, Attended]:
        """The maxout layer's t_i."""
        read, attended = self.taken(encoded, target_in)
        return self.output.features(*read), attended

    def taken(self, encoded: Encoded, target_in: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Attended]:
        """All steps: the states, words and contexts that the readout reads, and what was attended to."""
        words = self.dropout(self.embedding(target_in))
        shown, attended = self.loop(self, self.start(encoded), words)
        return (shown, words, attended.context), attended

    def step(self, state: BahdanauState, tokens: Tensor) -> tuple[Tensor, BahdanauState, Attended]:
        """Tokens B -> log-probabilities B,V."""
        word = self.dropout(self.embedding(tokens))
        state, attended, shown = self.advance(state, word)
        logits = self.output(shown[:, None], word[:, None], attended.context)[:, 0]
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
    """The model of the settings: each annotation is a key and a value, `settings.memory_size` wide.

    With an attention of one's own for states of `size`, or a decoder derived from this.
    """
    width, read = settings.memory_size, encoder(settings, source_size)
    return assemble(settings, read, width, width, target_size, criterion, attention, decoder)


def assemble(
    settings: BahdanauSettings,
    encoder: Encoder,
    key_size: int,
    value_size: int,
    target_size: int,
    criterion: CrossEntropy,
    attention: Attention | None = None,
    decoder: type[BahdanauDecoder] = BahdanauDecoder,
) -> Seq2Seq:
    """Bahdanau's decoder over a memory with keys and values of the given widths."""
    size, word_size, cell = settings.size, settings.word_size, CELLS[settings.cell]
    maxout = max(1, size // 2) if settings.maxout is None else settings.maxout
    output = DeepOutput(size, word_size, value_size, maxout, target_size, settings.dropout)
    writer = decoder(
        embedding(target_size, word_size),
        attention_of(settings, size, key_size, settings.hidden) if attention is None else attention,
        Recurrent(
            cell, word_size + value_size, size, settings.layers, dropout=settings.dropout, residual=settings.residual
        ),
        Bridge(size, size, settings.layers, cell.tracks),
        output,
        settings.dropout,
        settings.readout,
    )
    if settings.tie:
        tie(writer.embedding, output.W_o, "maxout gives")
    model = Seq2Seq(encoder, writer, criterion)
    if settings.initialisation == "paper":
        orthogonal(model)
        for name, parameter in writer.attention.named_parameters():
            if name.startswith("score."):
                nn.init.normal_(parameter, std=0.001 if parameter.dim() > 1 else 0.0)
    return model
