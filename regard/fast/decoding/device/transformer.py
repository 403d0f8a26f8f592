"""Transformer decoder for the device search: one step at fixed addresses, the fast twin of `TransformerDecoder.step`.

Keys and values stay where they were written. A table says for each position of a hypothesis which row of its sentence
wrote it; reordering a beam changes this table only.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.fast.cuda_graphs.buckets import round_up_to_fraction
from regard.fast.cuda_graphs.pool import StaticBuffers
from regard.fast.decoding.device.ops import DecodingOps, TokenEmbedding, attention_weights
from regard.fast.decoding.device.state import (
    BeamState,
    CastWeights,
    ReplayFunction,
    StateAllocator,
    WorkspaceSize,
    copy_into,
)
from regard.fast.training.packed import loss as packed_loss
from regard.fast.training.packed.batch import make_ragged, pad_lengths
from regard.fast.training.packed.loss import ResidualStream
from regard.models.base import Seq2Seq
from regard.models.vaswani2017 import TransformerDecoder, TransformerEncoder
from regard.nn import prefix_mask
from regard.special_tokens import PAD


def is_supported_transformer(model: Seq2Seq) -> bool:
    """Return whether this is an unmodified Transformer with one number of heads, without a bias of its output."""
    if packed_loss.find_obstacle(model) is not None:
        return False
    decoder = model.decoder
    assert isinstance(decoder, TransformerDecoder)
    heads = {layer.attention.heads for layer in decoder.decoder_layers()}
    return type(decoder.output) is nn.Linear and decoder.output.bias is None and len(heads) == 1


class TransformerWeights:
    """Weights of a Transformer; those of matrix products are cast."""

    has_kv_cache = True

    def __init__(self, model: Seq2Seq, dtype: torch.dtype, ops: DecodingOps) -> None:
        encoder, decoder = model.encoder, model.decoder
        assert isinstance(encoder, TransformerEncoder)
        assert isinstance(decoder, TransformerDecoder)
        self.encoder, self.decoder, self.dtype, self.ops = encoder, decoder, dtype, ops
        self.casts = CastWeights(dtype)
        self.layers = decoder.decoder_layers()
        self.source_weight, self.source_bias = map(self._source_projection, ("in_proj_weight", "in_proj_bias"))
        self.words, self.scale = decoder.embedding.words.weight.detach(), decoder.embedding.scale
        self.output = self.casts.cast(decoder.output.weight)
        self.size, self.heads = self.layers[0].attention.size, self.layers[0].attention.heads
        self.tables: dict[int, Tensor] = {}  # by the number of positions

    def _source_projection(self, name: str) -> Tensor:
        """Concatenate the key and value projections of all layers."""
        attentions = [layer.cross_attention for layer in self.layers]
        return self.casts.derive(lambda: torch.cat([getattr(one, name)[one.size :] for one in attentions]))

    def position_table(self, count: int) -> Tensor:
        """Return the embeddings of the first positions, at a fixed address."""
        if count not in self.tables:
            self.tables[count] = self.casts.derive(lambda: self._compute_positions(count), self.words.dtype)
        return self.tables[count]

    def _compute_positions(self, count: int) -> Tensor:
        found: Tensor = self.decoder.embedding.positions(self.words.new_zeros(1, count, self.size))
        return found[0]

    def encode_sources(self, source: Tensor, lengths: Tensor, count: int, out: Tensor) -> None:
        """Write keys and values of sources (A, S) for all layers to `out` (A, S, layers·2·size).

        Those of padding are undefined. There is room for `count` tokens; what remains is filled by sentences of
        padding.
        """
        (A, S), num_spare = source.shape, -(-count // source.shape[1])
        is_spare = torch.arange(A + num_spare, device=lengths.device) >= A
        layout = make_ragged(pad_lengths(F.pad(lengths, (0, num_spare)), is_spare, S, count), count, S)
        ids = layout.pack(F.pad(source, (0, 0, 0, num_spare), value=PAD))
        memory = packed_loss.encode(self.encoder, ids, layout, self.ops.packed, self.dtype)
        projected = torch.addmm(self.source_bias, memory, self.source_weight.t())
        rows = layout.cu_seqlens[:A, None] + torch.arange(S, device=source.device)
        torch.index_select(projected, 0, rows.clamp(max=count - 1).flatten(), out=out.flatten(0, 1))

    def make_step(self, size: WorkspaceSize, buffers: StaticBuffers) -> TransformerStep:
        """Return the states and the step for a search of this size."""
        return TransformerStep(self, size, buffers)


class TransformerStep:
    """KV caches, and the step that uses them."""

    def __init__(self, weights: TransformerWeights, size: WorkspaceSize, buffers: StaticBuffers) -> None:
        self.weights, self.size = weights, size
        take, L, D = StateAllocator(buffers, weights.words), len(weights.layers), weights.size
        self.cache = take("cache", weights.dtype, L, size.capacity, size.rows, 2 * D)
        self.tables = take("tables", torch.int32, 2, size.rows, size.capacity)  # of odd and even steps
        self.source = take("source", weights.dtype, size.sentences, size.source, L * 2 * D)
        self.ids = take("ids", torch.int64, size.sentences, size.source)
        self.lengths = take("lengths", torch.int32, size.sentences)
        self.embedding = TokenEmbedding(weights.words, weights.scale, weights.position_table(size.capacity))

    def start(self, source: Tensor, lengths: Tensor, count: int, replay: ReplayFunction) -> None:
        """Encode the sources."""
        self.lengths.zero_()
        copy_into(self.ids, source)
        copy_into(self.lengths, lengths)
        capacity = round_up_to_fraction(count, 16)
        replay(capacity, lambda: self.weights.encode_sources(self.ids, self.lengths, capacity, self.source))

    def copy_states(self, sentence_ids: Tensor, steps_done: int) -> list[Tensor]:
        """Return previous keys and values, and the sources."""
        A, W = self.size.sentences, self.size.width
        keys_and_values = self._cache_by_sentence()[:, :steps_done].index_select(2, sentence_ids)
        table = self.tables[1].view(A, W, -1).index_select(0, sentence_ids)[..., :steps_done]
        return [keys_and_values, table, *(part.index_select(0, sentence_ids) for part in (self.source, self.lengths))]

    def restore_states(self, states: list[Tensor]) -> None:
        """Copy them to buffers of another size."""
        keys_and_values, table, source, lengths = states
        A, W = self.size.sentences, self.size.width
        self.lengths.zero_()
        copy_into(self._cache_by_sentence(), keys_and_values)
        copy_into(self.tables[1].view(A, W, -1), table)
        copy_into(self.source, source)
        copy_into(self.lengths, lengths)

    def _cache_by_sentence(self) -> Tensor:
        """View the cache as (layers, capacity, A, W, 2·size)."""
        L, capacity, _, D = self.cache.shape
        return self.cache.view(L, capacity, self.size.sentences, self.size.width, D)

    def step(self, state: BeamState, number: int) -> Tensor:
        """Run all layers."""
        own, ops = self.weights, self.weights.ops
        previous_table, new_table = self.tables[1 - number % 2], self.tables[number % 2]
        x = ops.embed_and_link(state, number, self.embedding, previous_table, new_table)
        stream = ResidualStream(ops.packed, x, own.layers, own.decoder.norm, own.dtype, own.casts.cast)
        alignment_layer = range(len(own.layers))[own.decoder.alignment_head.layer]
        sources = self.source.chunk(len(own.layers), 2)
        for index, (layer, cache, source) in enumerate(zip(own.layers, self.cache, sources, strict=True)):
            attend = partial(ops.self_attention_step, cache=cache, table=new_table, state=state, number=number)
            stream.add_attention(layer.attention, 3, attend)
            weights = state.attention[number] if state.attention is not None and index == alignment_layer else None
            stream.add_attention(layer.cross_attention, 1, partial(self._attend_source, source=source, weights=weights))
            stream.add_feed_forward(layer.feedforward)
        return stream.layer_input

    def _attend_source(self, q: Tensor, source: Tensor, heads: int, weights: Tensor | None) -> Tensor:
        """Return contexts (R, size); optionally write `weights` (R, S), of the alignment head or the mean of all."""
        if weights is not None:
            A, S, _ = source.shape
            mask, head = prefix_mask(self.lengths, S), self.weights.decoder.alignment_head.head
            by_head = attention_weights(q.view(A, -1, q.shape[1]), source, mask, heads)
            weights.copy_((by_head.mean(1) if head is None else by_head[:, head]).flatten(0, 1))
        return self.weights.ops.cross_attention(q, source, self.lengths, heads)
