"""Luong's decoder for the device search: one step at fixed addresses, the fast twin of `LuongDecoder.step`.

The gates of a layer are one product over [x; h_{t-1}]. Reordering a beam moves nothing: a step reads the states of
the rows that were extended, where the step before has left them, and writes its own to a second buffer.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.fast.cuda_graphs.pool import Places
from regard.fast.decoding.device.ops import Gates, Parts, Piece, Source
from regard.fast.decoding.device.state import Board, Copies, Play, Size, States, put
from regard.models.base import Seq2Seq
from regard.models.luong2015 import LuongDecoder, LuongState
from regard.models.rnn_common import RecurrentEncoder
from regard.nn import Attention, Concat, Dot, General, Global, LSTMCell, Recurrent
from regard.nn import state_tensors as tensors_of
from regard.special_tokens import PAD

STRIDE = 4  # words; sources are read as if they had so many, or a multiple of it


def covers(model: Seq2Seq) -> bool:
    """Whether this is Luong's model with LSTM layers, looking at the whole source by dot, general or concat."""
    decoder = model.decoder
    if type(model) is not Seq2Seq or type(model.encoder) is not RecurrentEncoder or type(decoder) is not LuongDecoder:
        return False
    attention, recurrent = decoder.attention, decoder.recurrent
    return (
        type(recurrent) is Recurrent
        and not recurrent.residual
        and all(type(cell) is LSTMCell for cell in recurrent.forwards)
        and type(attention) is Attention
        and attention.coverage is None
        and type(attention.score) in (Dot, General, Concat)
        and type(attention.alignment) is Global
        and all(type(layer) is nn.Linear and layer.bias is None for layer in (decoder.W_c, decoder.W_s))
        and type(decoder.embedding) is nn.Embedding
    )


class LuongWeights:
    """The weights of Luong's decoder in the precision that is counted in."""

    grows = False

    def __init__(self, model: Seq2Seq, kind: torch.dtype, parts: Parts) -> None:
        decoder = model.decoder
        assert isinstance(decoder, LuongDecoder)
        self.model, self.decoder, self.kind, self.parts = model, decoder, kind, parts
        self.wide = torch.promote_types(kind, torch.float32)  # of cell states
        self.copies = Copies(kind)
        of = self.copies.of
        self.words, self.W_c, self.output = (of(one.weight) for one in (decoder.embedding, decoder.W_c, decoder.W_s))
        self.layers = [self.gates(cell) for cell in decoder.recurrent.forwards]  # type: ignore[arg-type]
        score = decoder.attention.score
        self.asks = of(score.query_weight) if isinstance(score, Concat) else None
        self.v = of(score.v) if isinstance(score, Concat) else None

    def gates(self, cell: LSTMCell) -> Gates:
        """One layer's."""
        keep = self.copies.keep
        return Gates(
            keep(lambda: torch.cat((cell.weight_ih, cell.weight_hh), 1)), keep(lambda: cell.bias_ih + cell.bias_hh)
        )

    def read(self, source: Tensor, lengths: Tensor) -> LuongState:
        """The readable decoder's first state."""
        half = self.kind != self.decoder.W_s.weight.dtype
        # A recording must cast the weights as they are each time: none that were cast before are kept.
        with torch.autocast(source.device.type, self.kind, enabled=half, cache_enabled=False):
            return self.decoder.start(self.model.encode(source, lengths))

    def stepper(self, size: Size, places: Places) -> LuongStepper:
        """One with room for this."""
        return LuongStepper(self, size, places)


class State(NamedTuple):
    """What a step leaves for the next."""

    h: list[Tensor]  # of each layer R,H
    c: list[Tensor]
    fed: Tensor  # R,F: h̃


class LuongStepper:
    """States, and the step from one to the next."""

    def __init__(self, weights: LuongWeights, size: Size, places: Places) -> None:
        self.weights, self.size = weights, size
        take, kind, decoder = States(places, weights.words), weights.kind, weights.decoder
        H, R = decoder.recurrent.output_size, size.rows
        V, F = decoder.W_c.in_features - H, decoder.W_c.out_features
        K = V if isinstance(decoder.attention.score, Dot) else H if weights.v is None else len(weights.v)
        layers = range(len(weights.layers))
        self.states = [
            State(
                [take(f"h{turn}.{layer}", kind, R, H) for layer in layers],
                [take(f"c{turn}.{layer}", weights.wide, R, H) for layer in layers],
                take(f"fed{turn}", kind, R, F),
            )
            for turn in range(2)
        ]
        self.source = Source(
            take("keys", kind, size.sentences, size.source, K),
            take("values", kind, size.sentences, size.source, V),
            take("lengths", torch.int32, size.sentences),
        )
        self.ids = take("ids", torch.int64, size.sentences, size.source)

    def begin(self, source: Tensor, lengths: Tensor, count: int, play: Play) -> None:
        """Reads the sources, of some sizes only: an LSTM's kernels are launched one by one where none is recorded."""
        self.source.lengths.zero_()
        self.ids.fill_(PAD)
        put(self.ids, source)
        put(self.source.lengths, lengths)
        longest = -(-source.shape[1] // STRIDE) * STRIDE
        play(longest, lambda: self.read(longest))

    def read(self, longest: int) -> None:
        """The readable decoder's first state, for every row of a sentence; where there is none, of a single word."""
        read = self.weights.read(self.ids[:, :longest], self.source.lengths.clamp(min=1))
        assert read.memory.projected is not None
        put(self.source.keys, read.memory.projected)
        put(self.source.values, read.memory.values)
        W, (h, c, fed) = self.size.width, self.states[0]
        for state, *places in zip(read.recurrent, h, c, strict=True):
            for place, part in zip(places, tensors_of(state), strict=True):
                put(place, part.repeat_interleave(W, 0))
        put(fed, read.attentional_vector.repeat_interleave(W, 0))

    def leave(self, kept: Tensor, taken: int) -> list[Tensor]:
        """The states of rows as they stand: the next step knows which of them it extends."""
        h, c, fed = self.states[0]
        W = self.size.width
        rows = [part.view(-1, W, part.shape[1]).index_select(0, kept).flatten(0, 1) for part in (*h, *c, fed)]
        return [*rows, *(part.index_select(0, kept) for part in self.source)]

    def follow(self, left: list[Tensor]) -> None:
        """The same here."""
        h, c, fed = self.states[0]
        self.source.lengths.zero_()
        for place, part in zip((*h, *c, fed, *self.source), left, strict=True):
            put(place, part)

    def step(self, board: Board, number: int) -> Tensor:
        """h_t → a_t → c_t → h̃_t."""
        own, parts = self.weights, self.weights.parts
        before, after = self.states[number % 2], self.states[1 - number % 2]
        tokens, rows = board.tokens.flatten(), board.rows.flatten()
        below = [Piece(own.words, tokens)]
        if own.decoder.input_feeding:
            below.append(Piece(before.fed, rows))
        for place, gates in enumerate(own.layers):
            pieces = [*below, Piece(before.h[place], rows)]
            parts.layer(pieces, gates, before.c[place], rows, after.c[place], after.h[place])
            below = [Piece(after.h[place], None)]
        h = after.h[-1]
        asked = h if own.asks is None else F.linear(h, own.asks)
        weights = None if board.looks is None else board.looks[number]
        context = parts.focus(asked, self.source, own.v, weights)
        parts.squash([Piece(context, None), Piece(h, None)], own.W_c, after.fed)
        return after.fed
