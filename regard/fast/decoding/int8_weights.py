"""Int8 weights of a Transformer: quantization, and the C structs and functions that take them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import addressof
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.fast.kernels import build
from regard.fast.selftest import check_products
from regard.models.vaswani2017 import DecoderLayer, EncoderLayer, TransformerDecoder, TransformerEncoder
from regard.nn import MultiHeadAttention

FOLDER = build.SOURCES / "int8"


@cache
def get_struct(name: str) -> type[ctypes.Structure]:
    """Return a struct of `api.h`, which is read at first use: without that file only the kernels are unavailable."""
    return build.read_api(FOLDER)[0][name]


def load_kernels(*flags: str) -> ctypes.CDLL:
    """Load the C kernels with additional compiler flags, or raise a `KernelUnavailableError`."""
    return build.load_library(FOLDER, flags=flags)


GROUP, MIN_SCALE = 4, 1e-30  # as in `int8.h`
MAX_INT8 = 127


class QuantizedMatrix(NamedTuple):
    """W (out, in) in int8, with one scale per row."""

    rows: Tensor  # out,in
    scales: Tensor  # out
    bias: Tensor  # out

    def select_rows(self, rows: Tensor) -> QuantizedMatrix:
        """Return some rows."""
        return QuantizedMatrix(*(part.index_select(0, rows) for part in self))


def quantize_matrix(weight: Tensor, bias: Tensor | None = None) -> QuantizedMatrix:
    """Round to int8, with 127 for the largest number of each row."""
    top = weight.abs().amax(1).clamp(min=MIN_SCALE)
    rows = (weight * (MAX_INT8 / top)[:, None]).round().to(torch.int8)
    return QuantizedMatrix(rows, top / MAX_INT8, torch.zeros_like(top) if bias is None else bias)


class WeightArena:
    """Tensors and structs that C structs point to, kept alive as long as this object."""

    def __init__(self, kernels: ctypes.CDLL) -> None:
        self.panel_width: int = kernels.int8_panel_width()
        self.objects: list[object] = []

    def pin(self, x: Tensor) -> int:
        """Copy a tensor and return its address."""
        x = x.detach().clone(memory_format=torch.contiguous_format)  # a model may go on learning
        self.objects.append(x)
        return x.data_ptr()

    def product(self, matrix: QuantizedMatrix) -> ctypes.Structure:
        """A matrix in panels."""
        out, in_features = matrix.rows.shape
        row_padding, column_padding = -out % self.panel_width, -in_features % GROUP
        groups = F.pad(matrix.rows, (0, column_padding, 0, row_padding)).view(torch.int32)  # four numbers of a row
        panels = groups.view(-1, self.panel_width, groups.shape[1]).transpose(1, 2)
        sums = matrix.rows.sum(1, dtype=torch.int32)
        numbers = (F.pad(part, (0, row_padding)) for part in (matrix.scales, matrix.bias, sums))
        return get_struct("LinearLayer")(self.pin(panels), *map(self.pin, numbers), in_features, out)

    def linear(self, layer: nn.Linear) -> ctypes.Structure:
        """Return a layer."""
        return self.product(quantize_matrix(layer.weight, layer.bias))

    def _projection(self, attention: MultiHeadAttention, first: int, last: int) -> ctypes.Structure:
        some = slice(first * attention.size, last * attention.size)
        return self.product(quantize_matrix(attention.in_proj_weight[some], attention.in_proj_bias[some]))

    def norm(self, norm: nn.Module) -> ctypes.Structure:
        """Return a layer norm."""
        assert isinstance(norm, nn.LayerNorm)
        return get_struct("LayerNorm")(self.pin(norm.weight), self.pin(norm.bias), norm.eps)

    def layer(self, layer: EncoderLayer | DecoderLayer) -> ctypes.Structure:
        """Return a layer; that of a decoder has cross-attention."""
        inner, _, outer = layer.feedforward
        assert isinstance(inner, nn.Linear)
        assert isinstance(outer, nn.Linear)
        made = get_struct("Layer")(
            around_attention=self.norm(layer.around_attention.norm),
            around_feedforward=self.norm(layer.around_feedforward.norm),
            attention=self._projection(layer.attention, 0, 3),
            attention_out=self.linear(layer.attention.out_proj),
            inner=self.linear(inner),
            outer=self.linear(outer),
        )
        if isinstance(layer, DecoderLayer):
            made.around_cross = self.norm(layer.around_cross_attention.norm)
            made.cross = self._projection(layer.cross_attention, 0, 1)
            made.cross_out = self.linear(layer.cross_attention.out_proj)
        return made

    def stack(self, part: TransformerEncoder | TransformerDecoder) -> ctypes.Structure:
        """Return the uniform layers of an encoder or decoder, and the final norm if there is one."""
        layers: list[Any] = list(part.layers)
        made, first = list(map(self.layer, layers)), layers[0]
        end = addressof(self.array([self.norm(part.norm)])) if isinstance(part.norm, nn.LayerNorm) else None
        post, widest = not first.around_attention.is_pre_norm, max(layer.inner.out_features for layer in made)
        size, heads, swish = first.attention.size, first.attention.heads, isinstance(first.feedforward[1], nn.SiLU)
        return get_struct("Stack")(addressof(self.array(made)), len(made), size, heads, widest, post, swish, end)

    def memory(self, layers: Sequence[DecoderLayer]) -> ctypes.Array[Any]:
        """Return the key and value projections of all decoder layers."""
        return self.array([self._projection(layer.cross_attention, 1, 3) for layer in layers])

    def array(self, items: Sequence[ctypes.Structure]) -> ctypes.Array[Any]:
        """Return an array of structs."""
        made = (type(items[0]) * len(items))(*items)
        self.objects.append(made)
        return made


SELFTEST_SHAPE = 32, 256, 1024  # of the compared products
TOLERANCE = 0.02  # relative error


class Int8Linear:
    """X Wᵀ + b, optionally with ReLU, as a single product."""

    def __init__(self, kernels: ctypes.CDLL, weight: Tensor, bias: Tensor | None = None) -> None:
        self.kernels, self.weights = kernels, WeightArena(kernels)
        self.product = self.weights.product(quantize_matrix(weight, bias))

    def __call__(self, x: Tensor, relu: bool = False) -> Tensor:
        """Multiply x (N, I) -> (N, O)."""
        x, (rows, in_features), out_features = x.contiguous(), x.shape, self.product.out_features
        panels = torch.empty(self.kernels.int8_panel_bytes(rows, in_features), dtype=torch.uint8)
        scales, y = torch.empty(rows, dtype=torch.float32), torch.empty(rows, out_features, dtype=torch.float32)
        quantized = get_struct("QuantizedRows")(panels.data_ptr(), scales.data_ptr())
        self.kernels.int8_quantize(x.data_ptr(), rows, in_features, quantized)
        self.kernels.int8_gemm(quantized, self.product, rows, y.data_ptr(), relu)
        return y


def check_int8_gemm(kernels: ctypes.CDLL) -> str:
    """Return "" if products are right and faster than in fp32, otherwise what is wrong."""
    rows, in_features, out_features = SELFTEST_SHAPE
    with torch.random.fork_rng(devices=[]):
        x, weight = (torch.randn(many, in_features, dtype=torch.float32) for many in (rows, out_features))
    linear = Int8Linear(kernels, weight)
    return check_products("int8", lambda: linear(x), lambda: x @ weight.t(), TOLERANCE)
