"""A Transformer's weights as bytes, in the layout of the kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.fast.octets.library import Layer, Norm, Product, Stack
from regard.models.vaswani2017 import DecoderLayer, EncoderLayer, PostNorm, TransformerDecoder, TransformerEncoder
from regard.nn import MultiHeadAttention

DEEP, LEAST = 4, 1e-30  # as in `octets.h`
MOST = 127


class Matrix(NamedTuple):
    """W out,in in bytes: each row is so many times its scale."""

    rows: Tensor  # out,in
    scales: Tensor  # out
    bias: Tensor  # out

    def some(self, rows: Tensor) -> Matrix:
        """The given rows of it."""
        return Matrix(*(part.index_select(0, rows) for part in self))


def in_bytes(weight: Tensor, bias: Tensor | None = None) -> Matrix:
    """The nearest bytes, where the largest of each row is 127."""
    top = weight.abs().amax(1).clamp(min=LEAST)
    rows = (weight * (MOST / top)[:, None]).round().to(torch.int8)
    return Matrix(rows, top / MOST, torch.zeros_like(top) if bias is None else bias)


class Weights:
    """What structures point to, which lives as long as this."""

    def __init__(self, kernels: ctypes.CDLL) -> None:
        self.wide: int = kernels.octets_wide()
        self.kept: list[object] = []

    def keep(self, x: Tensor) -> int:
        """Where a tensor is."""
        x = x.detach().clone(memory_format=torch.contiguous_format)  # a model may go on learning
        self.kept.append(x)
        return x.data_ptr()

    def product(self, matrix: Matrix) -> Product:
        """A matrix in panels."""
        out, inside = matrix.rows.shape
        below, beside = -out % self.wide, -inside % DEEP
        rows = F.pad(matrix.rows, (0, beside, 0, below)).view(torch.int32)  # four of a row's numbers are one
        panels = rows.view(-1, self.wide, rows.shape[1]).transpose(1, 2)
        sums = matrix.rows.sum(1, dtype=torch.int32)
        numbers = (F.pad(part, (0, below)) for part in (matrix.scales, matrix.bias, sums))
        return Product(self.keep(panels), *map(self.keep, numbers), inside, out)

    def linear(self, layer: nn.Linear) -> Product:
        """A layer's."""
        return self.product(in_bytes(layer.weight, layer.bias))

    def parts(self, attention: MultiHeadAttention, first: int, last: int) -> Product:
        """Of queries, keys and values those from the first to the last."""
        some = slice(first * attention.size, last * attention.size)
        return self.product(in_bytes(attention.in_proj_weight[some], attention.in_proj_bias[some]))

    def norm(self, norm: nn.Module) -> Norm:
        """A layer norm."""
        assert isinstance(norm, nn.LayerNorm)
        return Norm(self.keep(norm.weight), self.keep(norm.bias), norm.eps)

    def encoder_layer(self, layer: EncoderLayer | DecoderLayer) -> Layer:
        """Self-attention and the network, which both kinds have."""
        inner, _, outer = layer.feedforward
        assert isinstance(inner, nn.Linear)
        assert isinstance(outer, nn.Linear)
        return Layer(
            around_attention=self.norm(layer.around_attention.norm),
            around_feedforward=self.norm(layer.around_feedforward.norm),
            attention=self.parts(layer.attention, 0, 3),
            attention_out=self.linear(layer.attention.out_proj),
            inner=self.linear(inner),
            outer=self.linear(outer),
        )

    def decoder_layer(self, layer: DecoderLayer) -> Layer:
        """And what looks at the source."""
        made = self.encoder_layer(layer)
        made.around_cross = self.norm(layer.around_cross_attention.norm)
        made.cross = self.parts(layer.cross_attention, 0, 1)
        made.cross_out = self.linear(layer.cross_attention.out_proj)
        return made

    def encoder(self, encoder: TransformerEncoder) -> Stack:
        """All layers of an encoder."""
        layers: list[EncoderLayer] = list(encoder.layers)  # type: ignore[arg-type]
        return self.stack(list(map(self.encoder_layer, layers)), layers[0], encoder.norm)

    def decoder(self, decoder: TransformerDecoder) -> Stack:
        """All layers of a decoder."""
        layers = decoder.decoder_layers()
        return self.stack(list(map(self.decoder_layer, layers)), layers[0], decoder.norm)

    def stack(self, made: list[Layer], first: EncoderLayer | DecoderLayer, last: nn.Module) -> Stack:
        """Layers one above the other, of which all are like the first, and the norm at their end, if there is one."""
        end = self.array(Norm, [self.norm(last)]) if isinstance(last, nn.LayerNorm) else None
        post = isinstance(first.around_attention, PostNorm)
        widest = max(layer.inner.outside for layer in made)
        size, heads = first.attention.size, first.attention.heads
        return Stack(self.array(Layer, made), len(made), size, heads, widest, post, end)

    def memory(self, layers: Sequence[DecoderLayer]) -> int:
        """The keys and values that each layer makes of the source."""
        return self.array(Product, [self.parts(layer.cross_attention, 1, 3) for layer in layers])

    def array(self, kind: type[ctypes.Structure], items: Sequence[ctypes.Structure]) -> int:
        """Structures one behind the other."""
        made = (kind * len(items))(*items)
        self.kept.append(made)
        return ctypes.addressof(made)
