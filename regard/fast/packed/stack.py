"""A Transformer's loss over sentences laid end to end: the fast twin of `Seq2Seq.summed`.

Padding is neither computed nor kept, the projections of the source for all decoder layers are one matrix product, and
a sub-layer's link and the norm behind it are one step. The modules and their parameters are the readable ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.fast.packed.batch import Batch
from regard.fast.packed.parts import Parts
from regard.fast.packed.spans import Spans
from regard.models.base import Seq2Seq
from regard.models.vaswani2017 import (
    DecoderLayer,
    EncoderLayer,
    PreNorm,
    Residual,
    TransformerDecoder,
    TransformerEmbedding,
    TransformerEncoder,
)
from regard.nn import MultiHeadAttention


class Flow:
    """A stream of words through sub-layers: x as it is, and `read`, which the next sub-layer reads.

    With the norm before each sub-layer the stream is the sum, and the norm behind a link is that of the sub-layer
    after; with the norm behind, it is its own, and the stream is what it gives.
    """

    def __init__(
        self, parts: Parts, x: Tensor, residuals: Sequence[Residual], last: nn.Module, kind: torch.dtype
    ) -> None:
        self.parts = parts
        self.pre = isinstance(residuals[0], PreNorm)
        norms = [residual.norm for residual in residuals]
        self.x, self.read = x, x.to(kind)
        if self.pre:
            first = norms.pop(0)
            assert isinstance(last, nn.LayerNorm)
            norms.append(last)
            self.read = F.layer_norm(x, x.shape[1:], first.weight, first.bias, first.eps).to(kind)
        self.after = iter(zip(residuals, norms, strict=True))

    def leave(self, y: Tensor, bias: Tensor) -> None:
        """A sub-layer gave y, which lacks its bias."""
        residual, norm = next(self.after)
        dropout = residual.dropout.p if residual.dropout.training else 0.0
        self.x, self.read = self.parts.add_norm(
            self.x, y, bias, norm.weight, norm.bias, norm.eps, dropout, not self.pre
        )

    def attended(self, heads: Tensor, attention: MultiHeadAttention) -> None:
        """W^O of all heads."""
        self.leave(self.parts.linear(heads, attention.out_proj.weight, None), attention.out_proj.bias)

    def self_attention(self, attention: MultiHeadAttention, words: Spans, causal: bool) -> None:
        """Each sentence over itself."""
        qkv = self.parts.linear(self.read, attention.in_proj_weight, attention.in_proj_bias)
        self.attended(self.parts.attend_self(qkv, words, attention.heads, causal), attention)

    def cross_attention(self, attention: MultiHeadAttention, kv: Tensor, words: Spans, source: Spans) -> None:
        """Each sentence over its source, projected."""
        size = attention.size
        q = self.parts.linear(self.read, attention.in_proj_weight[:size], attention.in_proj_bias[:size])
        self.attended(self.parts.attend(q, kv, words, source, attention.heads), attention)

    def feed_forward(self, network: nn.Sequential) -> None:
        """Word by word."""
        first, _, second = network
        assert isinstance(first, nn.Linear)
        assert isinstance(second, nn.Linear)
        self.leave(self.parts.feed_forward(self.read, first.weight, first.bias, second.weight), second.bias)


def embedded(embedding: TransformerEmbedding, ids: Tensor, words: Spans) -> Tensor:
    """Ids N -> N,size: each word is a row of its own, that begins at its place."""
    x: Tensor = embedding(ids[:, None], words.places)
    return x[:, 0]


def encoded(encoder: TransformerEncoder, ids: Tensor, words: Spans, parts: Parts, kind: torch.dtype) -> Tensor:
    """Ids N -> the memory N,size."""
    layers: list[EncoderLayer] = list(encoder.layers)  # type: ignore[arg-type]
    residuals = [link for layer in layers for link in (layer.around_attention, layer.around_feedforward)]
    flow = Flow(parts, embedded(encoder.embedding, ids, words), residuals, encoder.norm, kind)
    for layer in layers:
        flow.self_attention(layer.attention, words, causal=False)
        flow.feed_forward(layer.feedforward)
    return flow.read


def decoded(
    decoder: TransformerDecoder, memory: Tensor, source: Spans, ids: Tensor, words: Spans, parts: Parts
) -> Tensor:
    """Ids N over a memory M,size -> what the output layer reads, N,size."""
    layers = decoder.decoder_layers()
    residuals = [
        link
        for layer in layers
        for link in (layer.around_attention, layer.around_cross_attention, layer.around_feedforward)
    ]
    flow = Flow(parts, embedded(decoder.embedding, ids, words), residuals, decoder.norm, memory.dtype)
    for layer, kv in zip(layers, projected(layers, memory, parts), strict=True):
        flow.self_attention(layer.attention, words, causal=True)
        flow.cross_attention(layer.cross_attention, kv, words, source)
        flow.feed_forward(layer.feedforward)
    return flow.read


def projected(layers: Sequence[DecoderLayer], memory: Tensor, parts: Parts) -> tuple[Tensor, ...]:
    """Keys and values of the source for each layer, M,2·size."""
    attentions = [layer.cross_attention for layer in layers]
    weight = torch.cat([attention.in_proj_weight[attention.size :] for attention in attentions])
    bias = torch.cat([attention.in_proj_bias[attention.size :] for attention in attentions])
    return parts.linear(memory, weight, bias).chunk(len(layers), 1)


def summed(model: Seq2Seq, batch: Batch, r_drop: float, kind: torch.dtype, parts: Parts) -> Tensor:
    """The loss of a batch, summed up; R-Drop's second pass is the second half of it."""
    encoder, decoder = model.encoder, model.decoder
    assert isinstance(encoder, TransformerEncoder)
    assert isinstance(decoder, TransformerDecoder)
    with torch.autocast(batch.source.device.type, enabled=False):
        memory = encoded(encoder, batch.source, batch.there, parts, kind)
        h = decoded(decoder, memory, batch.there, batch.target_in, batch.here, parts)
        smoothing = model.criterion.settings.label_smoothing
        return parts.losses(h, decoder.output.weight, None, batch.target_out, smoothing, r_drop)
