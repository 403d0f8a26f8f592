"""Int8 weights of a Transformer: quantization, and the C structs and functions that take them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.fast.kernels import build as compiled
from regard.fast.kernels.build import PLACE, SINGLE, WHOLE, YES
from regard.fast.selftest import ratio
from regard.models.vaswani2017 import DecoderLayer, EncoderLayer, PostNorm, TransformerDecoder, TransformerEncoder
from regard.nn import MultiHeadAttention


class Product(ctypes.Structure):
    """y = W x + b, with W in bytes."""

    _fields_ = (
        *((name, PLACE) for name in ("panels", "scales", "bias", "sums")),
        *((name, WHOLE) for name in ("inside", "outside")),
    )


class Norm(ctypes.Structure):
    """A layer norm."""

    _fields_ = (("weight", PLACE), ("bias", PLACE), ("epsilon", SINGLE))


class Layer(ctypes.Structure):
    """One of an encoder lacks what looks at the source."""

    _fields_ = (
        *((name, Norm) for name in ("around_attention", "around_cross", "around_feedforward")),
        *((name, Product) for name in ("attention", "attention_out", "cross", "cross_out", "inner", "outer")),
    )


class Stack(ctypes.Structure):
    """Layers one above the other."""

    _fields_ = (
        ("layers", PLACE),
        *((name, WHOLE) for name in ("count", "size", "heads", "feedforward")),
        *(("post", YES), ("last", PLACE)),
    )


class Embedding(ctypes.Structure):
    """E x · scale, plus positions."""

    _fields_ = (("words", PLACE), ("positions", PLACE), ("count", WHOLE), ("scale", SINGLE))


class Words(ctypes.Structure):
    """What a step knows of its rows."""

    _fields_ = (
        *(("rows", WHOLE), ("many", WHOLE), ("who", PLACE), ("sources", WHOLE), ("places", WHOLE)),
        *(("pairs", PLACE), ("mask", PLACE)),
        *((name, WHOLE) for name in ("groups", "slots", "positions", "used")),
        *(("past", PLACE), ("table", PLACE)),
    )


class Viewpoint(ctypes.Structure):
    """Whose look at the source is given out."""

    _fields_ = (("layer", WHOLE), ("head", WHOLE))


class Asked(ctypes.Structure):
    """What is asked of targets."""

    _fields_ = (
        *(("least", WHOLE), ("limits", PLACE), ("end", ctypes.c_int64)),
        *(("never", PLACE), ("many", WHOLE), ("names", PLACE)),
    )


class Going(ctypes.Structure):
    """Targets on their way."""

    _fields_ = tuple((name, PLACE) for name in ("who", "read", "places", "reached", "done"))


class Written(ctypes.Structure):
    """What was written in some steps."""

    _fields_ = tuple((name, PLACE) for name in ("tokens", "log_probs", "seen", "logits"))


class Rows(ctypes.Structure):
    """Numbers in bytes."""

    _fields_ = (("panels", PLACE), ("scales", PLACE))


STACK, WORDS, EMBEDDING, PRODUCT = map(ctypes.POINTER, (Stack, Words, Embedding, Product))
DECODER = [STACK, WORDS, EMBEDDING, PRODUCT, Viewpoint]
SIGNATURES: compiled.Signatures = {
    "octets_wide": (WHOLE, []),
    "octets_room": (WHOLE, [WHOLE, WHOLE]),
    "octets_quantise": (None, [PLACE, WHOLE, WHOLE, Rows]),
    "octets_multiply": (None, [Rows, PRODUCT, WHOLE, PLACE, YES]),
    "octets_encode_space": (WHOLE, [STACK, WHOLE]),
    "octets_encode": (YES, [STACK, EMBEDDING, PLACE, PLACE, WHOLE, WHOLE, PLACE, WHOLE, WHOLE, PLACE, PLACE]),
    "octets_step_space": (WHOLE, [STACK, WORDS, WHOLE]),
    "octets_step": (YES, [*DECODER, *[PLACE] * 5]),
    "octets_write": (None, [*DECODER, *map(ctypes.POINTER, (Asked, Going, Written)), WHOLE, PLACE]),
}


def load_kernels(*flags: str) -> ctypes.CDLL:
    """All of them, or a `MissingError`; a compiler may be told more."""
    return compiled.library(compiled.SOURCES / "int8", SIGNATURES, flags=flags)


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


def quantize_rows(weight: Tensor, bias: Tensor | None = None) -> Matrix:
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
        return self.product(quantize_rows(layer.weight, layer.bias))

    def parts(self, attention: MultiHeadAttention, first: int, last: int) -> Product:
        """Of queries, keys and values those from the first to the last."""
        some = slice(first * attention.size, last * attention.size)
        return self.product(quantize_rows(attention.in_proj_weight[some], attention.in_proj_bias[some]))

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


TRIAL, ROUNDS = (32, 256, 1024), 4  # the shape of products by which it is compared with PyTorch's, and how many turns
CLOSE = 0.02  # of the whole; what bytes may be off by


class Linear:
    """X Wᵀ + b, or with `relu` what of it is above 0."""

    def __init__(self, kernels: ctypes.CDLL, weight: Tensor, bias: Tensor | None = None) -> None:
        self.kernels, self.weights = kernels, Weights(kernels)
        self.product = self.weights.product(quantize_rows(weight, bias))

    def __call__(self, x: Tensor, relu: bool = False) -> Tensor:
        """X N,I -> N,O."""
        x, (rows, inside), outside = x.contiguous(), x.shape, self.product.outside
        panels = torch.empty(self.kernels.octets_room(rows, inside), dtype=torch.uint8)
        scales, y = torch.empty(rows, dtype=torch.float32), torch.empty(rows, outside, dtype=torch.float32)
        halfway = Rows(panels.data_ptr(), scales.data_ptr())
        self.kernels.octets_quantise(x.data_ptr(), rows, inside, halfway)
        self.kernels.octets_multiply(halfway, self.product, rows, y.data_ptr(), relu)
        return y


def tried(kernels: ctypes.CDLL) -> str:
    """Nothing, if products are right, and take less time than in single precision; otherwise what is wrong."""
    rows, inside, outside = TRIAL
    with torch.random.fork_rng(devices=[]):
        x, weight = (torch.randn(many, inside, dtype=torch.float32) for many in (rows, outside))
    linear, exact = Linear(kernels, weight), x @ weight.t()
    if not (linear(x) - exact).norm() < CLOSE * exact.norm():
        return "kernels for bytes give wrong numbers here"
    times = ratio(lambda: linear(x), lambda: x @ weight.t(), ROUNDS)
    return f"in bytes products would take {times:.2f} times as long" if times > 1 else ""
