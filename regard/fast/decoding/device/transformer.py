"""Transformer decoder for the device search: one step at fixed addresses, the fast twin of `TransformerDecoder.step`.

Keys and values stay where they were written. A table says for each position of a hypothesis which row of its sentence
wrote it; reordering a beam changes this table only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.fast.cuda_graphs.buckets import up
from regard.fast.cuda_graphs.pool import Places
from regard.fast.decoding.device.ops import Parts, looks
from regard.fast.decoding.device.state import Board, Copies, Play, Size, States, put
from regard.fast.training.packed import loss as packed_way
from regard.fast.training.packed import loss as stack
from regard.fast.training.packed.batch import laid, spans
from regard.models.base import Seq2Seq
from regard.models.vaswani2017 import DecoderLayer, PreNorm, TransformerDecoder, TransformerEncoder
from regard.nn import prefix_mask
from regard.special_tokens import PAD


class Product(NamedTuple):
    """W and b."""

    weight: Tensor
    bias: Tensor


class Layer(NamedTuple):
    """The products of a layer in their order, and the norms of the links around them."""

    own: Product  # queries, keys and values of self-attention
    own_out: Product
    query: Product  # of attention over the source
    source_out: Product
    first: Product
    second: Product
    norms: tuple[nn.LayerNorm, ...]


def covers(model: Seq2Seq) -> bool:
    """Whether this is the Transformer that is known here, not one that somebody made of it."""
    if not packed_way.covers(model):
        return False
    decoder = model.decoder
    assert isinstance(decoder, TransformerDecoder)
    heads = {layer.attention.heads for layer in decoder.decoder_layers()}
    return type(decoder.output) is nn.Linear and len(heads) == 1


class TransformerWeights:
    """The weights of a Transformer, those of matrix products in the precision that is counted in."""

    grows = True

    def __init__(self, model: Seq2Seq, kind: torch.dtype, parts: Parts) -> None:
        encoder, decoder = model.encoder, model.decoder
        assert isinstance(encoder, TransformerEncoder)
        assert isinstance(decoder, TransformerDecoder)
        self.encoder, self.decoder, self.kind, self.parts = encoder, decoder, kind, parts
        self.copies = Copies(kind)
        self.layers = [self.layer(layer) for layer in decoder.decoder_layers()]
        self.source = Product(self.of_sources("in_proj_weight"), self.of_sources("in_proj_bias"))
        self.words, self.scale = decoder.embedding.words.weight.detach(), decoder.embedding.scale
        self.output = self.copies.of(decoder.output.weight)
        self.size, self.heads = decoder.decoder_layers()[0].attention.size, decoder.decoder_layers()[0].attention.heads
        self.tables: dict[int, Tensor] = {}  # positions 0 … n−1 as vectors, by n
        norms = [norm for layer in self.layers for norm in layer.norms]
        self.pre = isinstance(decoder.decoder_layers()[0].around_attention, PreNorm)
        self.first = norms[0] if self.pre else None
        self.after = [*norms[1:], decoder.norm] if self.pre else norms  # behind each link

    def layer(self, layer: DecoderLayer) -> Layer:
        """One layer's."""
        own, cross, of = layer.attention, layer.cross_attention, self.copies.of
        first, _, second = layer.feedforward
        assert isinstance(first, nn.Linear)
        assert isinstance(second, nn.Linear)
        return Layer(
            Product(of(own.in_proj_weight), of(own.in_proj_bias)),
            Product(of(own.out_proj.weight), own.out_proj.bias.detach()),
            Product(of(cross.in_proj_weight)[: cross.size], of(cross.in_proj_bias)[: cross.size]),
            Product(of(cross.out_proj.weight), cross.out_proj.bias.detach()),
            Product(of(first.weight), of(first.bias)),
            Product(of(second.weight), second.bias.detach()),
            (layer.around_attention.norm, layer.around_cross_attention.norm, layer.around_feedforward.norm),
        )

    def of_sources(self, name: str) -> Tensor:
        """What makes keys and values of the source, for all layers at once."""
        attentions = [layer.cross_attention for layer in self.decoder.decoder_layers()]
        return self.copies.keep(lambda: torch.cat([getattr(one, name)[one.size :] for one in attentions]))

    def table(self, count: int) -> Tensor:
        """The vectors of so many positions, at an address that stays."""
        if count not in self.tables:
            self.tables[count] = self.copies.keep(lambda: self.positions(count), self.words.dtype)
        return self.tables[count]

    def positions(self, count: int) -> Tensor:
        """The same, as the model has them now."""
        found: Tensor = self.decoder.embedding.positions(self.words.new_zeros(1, count, self.size))
        return found[0]

    def read(self, source: Tensor, lengths: Tensor, count: int, out: Tensor) -> None:
        """Keys and values of sources A,S for all layers, to A,S,layers·2·size; behind each end anything may stand.

        There is room for `count` words; what is left of it is taken by sentences of padding.
        """
        (A, S), most = source.shape, -(-count // source.shape[1])
        spare = torch.arange(A + most, device=lengths.device) >= A
        words = spans(laid(F.pad(lengths, (0, most)), spare, S, count), count, S)
        ids = words.pack(F.pad(source, (0, 0, 0, most), value=PAD))
        memory = stack.encoded(self.encoder, ids, words, self.parts.packed, self.kind)
        projected = torch.addmm(self.source.bias, memory, self.source.weight.t())
        at = words.starts[:A, None] + torch.arange(S, device=source.device)
        torch.index_select(projected, 0, at.clamp(max=count - 1).flatten(), out=out.flatten(0, 1))

    def stepper(self, size: Size, places: Places) -> TransformerStepper:
        """One with room for this."""
        return TransformerStepper(self, size, places)


class TransformerStepper:
    """Caches, and the step over them."""

    def __init__(self, weights: TransformerWeights, size: Size, places: Places) -> None:
        self.weights, self.size = weights, size
        take, L, D = States(places, weights.words), len(weights.layers), weights.size
        self.cache = take("cache", weights.kind, L, size.capacity, size.rows, 2 * D)
        self.tables = take("tables", torch.int32, 2, size.rows, size.capacity)  # read and written in turns
        self.source = take("source", weights.kind, size.sentences, size.source, L * 2 * D)
        self.ids = take("ids", torch.int64, size.sentences, size.source)
        self.lengths = take("lengths", torch.int32, size.sentences)
        self.places = weights.table(size.capacity)

    def begin(self, source: Tensor, lengths: Tensor, count: int, play: Play) -> None:
        """Nothing is written yet."""
        self.lengths.zero_()
        put(self.ids, source)
        put(self.lengths, lengths)
        room = up(count, 16)
        play(room, lambda: self.weights.read(self.ids, self.lengths, room, self.source))

    def leave(self, kept: Tensor, taken: int) -> list[Tensor]:
        """What was written so far, and what is known of the sources."""
        A, W = self.size.sentences, self.size.width
        written = self.written()[:, :taken].index_select(2, kept)
        table = self.tables[1].view(A, W, -1).index_select(0, kept)[..., :taken]
        return [written, table, self.source.index_select(0, kept), self.lengths.index_select(0, kept)]

    def follow(self, left: list[Tensor]) -> None:
        """All of that, where there is more room or less."""
        written, table, source, lengths = left
        A, W = self.size.sentences, self.size.width
        self.lengths.zero_()
        put(self.written(), written)
        put(self.tables[1].view(A, W, -1), table)
        put(self.source, source)
        put(self.lengths, lengths)

    def written(self) -> Tensor:
        """The cache by sentences: layers,capacity,A,W,2·size."""
        L, capacity, _, D = self.cache.shape
        return self.cache.view(L, capacity, self.size.sentences, self.size.width, D)

    def step(self, board: Board, number: int) -> Tensor:
        """All layers."""
        own, parts = self.weights, self.weights.parts
        before, after = self.tables[1 - number % 2], self.tables[number % 2]
        x = parts.enter(board, number, own.words, own.scale, self.places, before, after)
        read, links = self.entered(x), iter(own.after)
        seen = range(len(own.layers))[own.decoder.alignment_head.layer]
        for place, (layer, cache) in enumerate(zip(own.layers, self.cache, strict=True)):
            source = self.source[..., 2 * own.size * place : 2 * own.size * (place + 1)]
            qkv = parts.packed.linear(read, *layer.own)
            heads = parts.attend(qkv, cache, after, board, number, own.heads)
            x, read = self.link(x, parts.packed.linear(heads, layer.own_out.weight, None), layer.own_out, next(links))
            q = parts.packed.linear(read, *layer.query)
            if board.looks is not None and place == seen:
                board.looks[number].copy_(self.seen(q, source))
            heads = parts.look(q, source, self.lengths, own.heads)
            y = parts.packed.linear(heads, layer.source_out.weight, None)
            x, read = self.link(x, y, layer.source_out, next(links))
            y = parts.packed.feed_forward(read, *layer.first, layer.second.weight)
            x, read = self.link(x, y, layer.second, next(links))
        return read

    def entered(self, x: Tensor) -> Tensor:
        """What the first sub-layer reads."""
        first = self.weights.first
        if first is not None:
            x = F.layer_norm(x, x.shape[1:], first.weight, first.bias, first.eps)
        return x.to(self.weights.kind)

    def link(self, x: Tensor, y: Tensor, product: Product, norm: nn.Module) -> tuple[Tensor, Tensor]:
        """The stream behind a sub-layer that gave y, and what the next one reads."""
        assert isinstance(norm, nn.LayerNorm)
        add_norm = self.weights.parts.packed.add_norm
        return add_norm(x, y, product.bias, norm.weight, norm.bias, norm.eps, 0.0, not self.weights.pre)

    def seen(self, q: Tensor, source: Tensor) -> Tensor:
        """Where each row looks, R,S: by one head, or the mean of all."""
        A, S, _ = source.shape
        weights = looks(q.view(A, -1, q.shape[1]), source, prefix_mask(self.lengths, S), self.weights.heads)
        head = self.weights.decoder.alignment_head.head
        return (weights.mean(1) if head is None else weights[:, head]).flatten(0, 1)
