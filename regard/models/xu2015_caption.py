"""Image captioning: Xu et al. 2015, Show, attend and tell, over the cells of an image grid (section 3.1.1).

The encoder turns features or pixels of the cells into annotations; the decoders are those of `xu2015` and
`xu2015_hard`, unchanged. A grid cell is a row of F+2 numbers: its features, or the pixels of its patch, then its row
and its column. Grids of any shape can therefore be batched, and search handles them like sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Literal

import torch
from torch import Tensor, nn

from regard.config import NonNegativeFloat, NonNegativeInt, PositiveInt
from regard.models.base import CrossEntropy, Encoded, Encoder, Seq2Seq
from regard.models.rnn_common import RecurrentDecoderSettings
from regard.models.xu2015 import XuBaseSettings, XuDecoder, XuModel
from regard.models.xu2015_hard import HardAttentionBaseSettings, HardAttentionDecoder, HardAttentionModel
from regard.nn import Attention, Global, Memory, prefix_mask
from regard.nn.positional_encoding import sinusoidal_table

NUM_COORDINATES = 2  # row and column, after the features


@dataclass(frozen=True, kw_only=True)
class ImageEncoderSettings(RecurrentDecoderSettings):
    """Keys of a recipe whose encoder reads the cells of an image grid."""

    backbone: Literal["auto", "none", "cnn"] = "none"
    channels: PositiveInt = 32
    annotation: PositiveInt | None = None
    neighbours: NonNegativeInt = 0
    places: Literal["none", "sinusoid", "learned"] = "sinusoid"
    max_side: PositiveInt = 64

    def __post_init__(self) -> None:
        if self.neighbours > self.max_side:
            raise ValueError(f"neighbours must be at most max_side, {self.max_side}, not {self.neighbours}")

    @property
    def memory_size(self) -> int:
        """Width D of an annotation a_i."""
        return self.size if self.annotation is None else self.annotation


class PatchNet(nn.Module):
    """Small CNN over the pixels of one patch, independent of the other patches.

    Two 3×3 convolutions, the second with stride 2, global max pooling, and a projection.
    """

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.project = nn.Linear(2 * channels, size)

    def forward(self, pixels: Tensor) -> Tensor:
        """Map pixels (N, 3·P·P), colours last, to (N, size)."""
        side = isqrt(pixels.shape[1] // 3)
        if 3 * side * side != pixels.shape[1]:
            raise ValueError(
                f"backbone cnn needs square patches with 3 colour channels, not {pixels.shape[1]} numbers per patch"
            )
        image = pixels.view(-1, side, side, 3).permute(0, 3, 1, 2)
        conv_features = torch.relu(self.second(torch.relu(self.first(image))))
        annotation: Tensor = self.project(conv_features.amax((2, 3)))
        return annotation


class Sinusoidal2dPositions(nn.Module):
    """Two-dimensional sinusoidal encoding, projected: half of the dimensions for the row, half for the column."""

    def __init__(self, size: int, max_side: int) -> None:
        super().__init__()
        self.size = size
        self.max_side = max_side
        self.project = nn.Linear(size, size)

    def forward(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Encode rows and columns (B, S) as (B, S, size)."""
        half = self.size // 2
        table = [sinusoidal_table(0, self.max_side, width, rows.device) for width in (half, self.size - half)]
        encodings = torch.cat((table[0][rows], table[1][columns]), -1)
        projected: Tensor = self.project(encodings.to(self.project.weight.dtype))
        return projected


class Learned2dPositions(nn.Module):
    """Learned two-dimensional encoding: the sum of a row embedding and a column embedding."""

    def __init__(self, size: int, max_side: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(max_side, size))
        self.columns = nn.Parameter(torch.randn(max_side, size))

    def forward(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Encode rows and columns (B, S) as (B, S, size)."""
        return self.rows[rows] + self.columns[columns]


class SpatialConv(nn.Module):
    """3×3 convolution over the grid with a residual connection; the grid is zero-padded."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(size, size, 3, padding=1)

    def forward(self, x: Tensor, rows: Tensor, columns: Tensor, mask: Tensor) -> Tensor:
        """Convolve annotations (B, S, D).

        Args:
            x: annotations (B, S, D).
            rows: row of each annotation, (B, S).
            columns: column of each annotation, (B, S).
            mask: True for real cells, (B, S).
        """
        batch = torch.arange(len(x), device=x.device)[:, None]
        grid = x.new_zeros(len(x), int(rows.max()) + 1, int(columns.max()) + 1, x.shape[2])
        grid = grid.index_put((batch, rows, columns), x * mask[..., None], accumulate=True)  # padding adds 0
        conv_features = self.convolution(grid.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return x + torch.relu(conv_features[batch, rows, columns])


class ImageEncoder(Encoder):
    """Image encoder: a_i = f(x_i) + position_i, one annotation per grid cell, optionally followed by convolutions.

    Each annotation is a key and a value. `feature_size` is the number of features or pixels of a grid cell.
    """

    def __init__(self, settings: ImageEncoderSettings, feature_size: int) -> None:
        super().__init__()
        size, self.max_side = settings.memory_size, settings.max_side
        # This order decides the weights of a seed.
        convolutions = [SpatialConv(size) for _ in range(settings.neighbours)]
        # `auto` is a CNN until the data turn out to be extracted features.
        has_cnn = settings.backbone != "none"
        self.backbone = PatchNet(settings.channels, size) if has_cnn else nn.Linear(feature_size, size)
        encodings = {"sinusoid": Sinusoidal2dPositions, "learned": Learned2dPositions}
        self.places = None if settings.places == "none" else encodings[settings.places](size, self.max_side)
        self.neighbours = nn.ModuleList(convolutions)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, source: Tensor, lengths: Tensor) -> Encoded:
        """Encode grid cells (B, S, F+2), right-padded, with their number (B,), as a memory (B, S, D)."""
        mask = prefix_mask(lengths, source.shape[1])
        features, coordinates = source[..., :-NUM_COORDINATES], source[..., -NUM_COORDINATES:].long()
        if coordinates.numel() and int(coordinates.max()) >= self.max_side:
            raise ValueError(f"an image has more than {self.max_side} rows or columns; raise model.max_side")
        rows, columns = coordinates.unbind(-1)
        patch_features = self.backbone(features.flatten(0, 1)).unflatten(0, features.shape[:2])
        if self.places is not None:
            patch_features = patch_features + self.places(rows, columns).to(patch_features.dtype)
        for layer in self.neighbours:
            patch_features = layer(patch_features, rows, columns, mask)
        annotations = self.dropout(patch_features) * mask[..., None]
        return Encoded(Memory(annotations, annotations, mask), None)


@dataclass(frozen=True, kw_only=True)
class SoftCaptionSettings(XuBaseSettings, ImageEncoderSettings):
    """The `model` section of `xu2015-soft-caption`."""

    doubly_stochastic: NonNegativeFloat = 1.0


@dataclass(frozen=True, kw_only=True)
class HardCaptionSettings(HardAttentionBaseSettings, ImageEncoderSettings):
    """The `model` section of `xu2015-hard-caption`."""


def build_soft_caption(
    settings: SoftCaptionSettings, source_size: int, target_size: int, criterion: CrossEntropy
) -> Seq2Seq:
    """Build soft attention over grid cells with `source_size` features."""
    attention = Attention(settings.make_score(), Global())
    decoder = XuDecoder(settings, target_size, attention)
    return XuModel(ImageEncoder(settings, source_size), decoder, criterion, settings.doubly_stochastic)


def build_hard_caption(
    settings: HardCaptionSettings, source_size: int, target_size: int, criterion: CrossEntropy
) -> Seq2Seq:
    """Build hard attention over grid cells with `source_size` features."""
    decoder = HardAttentionDecoder(settings, target_size)
    return HardAttentionModel(ImageEncoder(settings, source_size), decoder, criterion)
