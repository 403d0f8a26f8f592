"""Luong's decoder for the device search: one step at fixed addresses, the fast twin of `LuongDecoder.step`.

The gates of a layer are one product over [x; h_{t-1}]. Reordering a beam moves nothing: a step reads the states of
the rows that were extended, where the step before has left them, and writes its own to a second buffer.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.fast.cuda_graphs.pool import StaticBuffers
from regard.fast.decoding.device.ops import DecodingOps, LSTMWeights, RowGather, SourceMemory
from regard.fast.decoding.device.state import (
    BeamState,
    CastWeights,
    ReplayFunction,
    StateAllocator,
    WorkspaceSize,
    copy_into,
)
from regard.fast.training.luong import has_known_steps
from regard.models.base import Seq2Seq
from regard.models.luong2015 import LuongDecoder, LuongState
from regard.models.rnn_common import RecurrentEncoder
from regard.nn import Concat, Dot, General, Global, LSTMCell
from regard.nn import state_tensors as tensors_of
from regard.special_tokens import PAD

SOURCE_MULTIPLE = 4  # sources are padded to multiples of it


def is_supported_luong(model: Seq2Seq) -> bool:
    """Return whether this is Luong's model with LSTM layers and global attention (dot, general or concat)."""
    decoder = model.decoder
    if type(model) is not Seq2Seq or type(model.encoder) is not RecurrentEncoder or type(decoder) is not LuongDecoder:
        return False
    return (
        has_known_steps(decoder, {Dot, General, Concat}, {Global})
        and all(type(layer) is nn.Linear and layer.bias is None for layer in (decoder.W_c, decoder.W_s))
        and type(decoder.embedding) is nn.Embedding
    )


class LuongWeights:
    """Weights of Luong's decoder, cast."""

    has_kv_cache = False

    def __init__(self, model: Seq2Seq, dtype: torch.dtype, ops: DecodingOps) -> None:
        decoder = model.decoder
        assert isinstance(decoder, LuongDecoder)
        self.model, self.decoder, self.dtype, self.ops = model, decoder, dtype, ops
        self.cell_dtype = torch.promote_types(dtype, torch.float32)  # dtype of cell states
        self.casts = CastWeights(dtype)
        cast = self.casts.cast
        self.words, self.W_c, self.output = (cast(one.weight) for one in (decoder.embedding, decoder.W_c, decoder.W_s))
        self.layers = [self._lstm_weights(cell) for cell in decoder.recurrent.forwards]  # type: ignore[arg-type]
        score = decoder.attention.score
        self.query_weight = cast(score.query_weight) if isinstance(score, Concat) else None
        self.v = cast(score.v) if isinstance(score, Concat) else None

    def _lstm_weights(self, cell: LSTMCell) -> LSTMWeights:
        derive = self.casts.derive
        return LSTMWeights(
            derive(lambda: torch.cat((cell.weight_ih, cell.weight_hh), 1)), derive(lambda: cell.bias_ih + cell.bias_hh)
        )

    def encode_sources(self, source: Tensor, lengths: Tensor) -> LuongState:
        """Return the initial state of the reference decoder."""
        is_cast = self.dtype != self.decoder.W_s.weight.dtype
        # A graph must contain the casts of the weights, so autocast must not cache them.
        with torch.autocast(source.device.type, self.dtype, enabled=is_cast, cache_enabled=False):
            return self.decoder.start(self.model.encode(source, lengths))

    def make_step(self, size: WorkspaceSize, buffers: StaticBuffers) -> LuongStep:
        """Return the states and the step for a search of this size."""
        return LuongStep(self, size, buffers)


class StepState(NamedTuple):
    """State between two steps."""

    h: list[Tensor]  # of each layer (R, H)
    c: list[Tensor]
    attentional: Tensor  # (R, F), h̃


class LuongStep:
    """States, and the step from one to the next."""

    def __init__(self, weights: LuongWeights, size: WorkspaceSize, buffers: StaticBuffers) -> None:
        self.weights, self.size = weights, size
        take, dtype, decoder = StateAllocator(buffers, weights.words), weights.dtype, weights.decoder
        H, R = decoder.recurrent.output_size, size.rows
        V, F = decoder.W_c.in_features - H, decoder.W_c.out_features
        K = V if isinstance(decoder.attention.score, Dot) else H if weights.v is None else len(weights.v)
        layers = range(len(weights.layers))
        self.states = [
            StepState(
                [take(f"h{turn}.{layer}", dtype, R, H) for layer in layers],
                [take(f"c{turn}.{layer}", weights.cell_dtype, R, H) for layer in layers],
                take(f"fed{turn}", dtype, R, F),
            )
            for turn in range(2)
        ]
        self.source = SourceMemory(
            take("keys", dtype, size.sentences, size.source, K),
            take("values", dtype, size.sentences, size.source, V),
            take("lengths", torch.int32, size.sentences),
        )
        self.ids = take("ids", torch.int64, size.sentences, size.source)

    def start(self, source: Tensor, lengths: Tensor, count: int, replay: ReplayFunction) -> None:
        """Encode the sources, padded to some lengths only: without a graph, an LSTM is many kernel launches."""
        self.source.lengths.zero_()
        self.ids.fill_(PAD)
        copy_into(self.ids, source)
        copy_into(self.source.lengths, lengths)
        longest = -(-source.shape[1] // SOURCE_MULTIPLE) * SOURCE_MULTIPLE
        replay(longest, lambda: self.encode_sources(longest))

    def encode_sources(self, longest: int) -> None:
        """Compute the first state of every row; empty sources are read as one token."""
        read = self.weights.encode_sources(self.ids[:, :longest], self.source.lengths.clamp(min=1))
        assert read.memory.projected is not None
        copy_into(self.source.keys, read.memory.projected)
        copy_into(self.source.values, read.memory.values)
        W, (h, c, attentional) = self.size.width, self.states[0]
        for state, *buffers in zip(read.recurrent, h, c, strict=True):
            for buffer, tensor in zip(buffers, tensors_of(state), strict=True):
                copy_into(buffer, tensor.repeat_interleave(W, 0))
        copy_into(attentional, read.attentional_vector.repeat_interleave(W, 0))

    def copy_states(self, sentence_ids: Tensor, steps_done: int) -> list[Tensor]:
        """Return the states of rows; the next step knows which of them it extends."""
        h, c, attentional = self.states[0]
        W = self.size.width
        grouped = (part.view(-1, W, part.shape[1]) for part in (*h, *c, attentional))
        rows = [part.index_select(0, sentence_ids).flatten(0, 1) for part in grouped]
        return [*rows, *(part.index_select(0, sentence_ids) for part in self.source)]

    def restore_states(self, states: list[Tensor]) -> None:
        """Copy them to this workspace."""
        h, c, attentional = self.states[0]
        self.source.lengths.zero_()
        for buffer, tensor in zip((*h, *c, attentional, *self.source), states, strict=True):
            copy_into(buffer, tensor)

    def step(self, state: BeamState, number: int) -> Tensor:
        """Compute h_t → a_t → c_t → h̃_t."""
        own, ops = self.weights, self.weights.ops
        previous, new = self.states[number % 2], self.states[1 - number % 2]
        tokens, rows = state.tokens.flatten(), state.rows.flatten()
        pieces_below = [RowGather(own.words, tokens)]
        if own.decoder.input_feeding:
            pieces_below.append(RowGather(previous.attentional, rows))
        for layer_index, gates in enumerate(own.layers):
            pieces = [*pieces_below, RowGather(previous.h[layer_index], rows)]
            ops.lstm_step(pieces, gates, previous.c[layer_index], rows, new.c[layer_index], new.h[layer_index])
            pieces_below = [RowGather(new.h[layer_index], None)]
        h = new.h[-1]
        query = h if own.query_weight is None else F.linear(h, own.query_weight)
        weights = None if state.attention is None else state.attention[number]
        context = ops.luong_attention(query, self.source, own.v, weights)
        ops.attentional_state([RowGather(context, None), RowGather(h, None)], own.W_c, new.attentional)
        return new.attentional
