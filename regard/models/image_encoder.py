"""Images, or any features of places, as annotations: what show, attend and tell looks at (Xu 2015, section 3.1.1).

A place is a row F+2: its features, or the pixels of its patch, and at the end the row and the column where it is. So
grids of any shape share a batch, and a search carries them as it carries sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import Literal

import torch
from torch import Tensor, nn

from regard.models.base import Encoded, Encoder
from regard.models.rnn_common import RecurrentDecoderSettings
from regard.models.settings_checks import check_nonnegative, check_positive
from regard.nn import Memory, prefix_mask
from regard.nn.positional_encoding import sinusoidal_table

NUM_COORDINATES = 2  # numbers behind the features: row and column


@dataclass(frozen=True, kw_only=True)
class ImageEncoderSettings(RecurrentDecoderSettings):
    """What a recipe has whose encoder reads the places of an image."""

    backbone: Literal["auto", "none", "cnn"] = "none"
    channels: int = 32
    annotation: int | None = None
    neighbours: int = 0
    places: Literal["none", "sinusoid", "learned"] = "sinusoid"
    max_side: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "channels", "annotation", "max_side")
        check_nonnegative(self, "neighbours")
        if self.neighbours > self.max_side:
            raise ValueError(f"neighbours are at most max_side, {self.max_side}, not {self.neighbours}")

    @property
    def memory_size(self) -> int:
        """Width D of an annotation a_i."""
        return self.size if self.annotation is None else self.annotation


class PatchNet(nn.Module):
    """A small network over the pixels of one patch, which knows nothing of the patches beside it.

    Two 3×3 convolutions, the second with a stride of 2, the strongest answer of each filter, and a projection.
    """

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.project = nn.Linear(2 * channels, size)

    def forward(self, pixels: Tensor) -> Tensor:
        """Pixels N,3·P·P, colours last -> N,size."""
        side = isqrt(pixels.shape[1] // 3)
        if 3 * side * side != pixels.shape[1]:
            raise ValueError(f"backbone cnn reads square patches of three colours, not {pixels.shape[1]} numbers")
        image = pixels.view(-1, side, side, 3).permute(0, 3, 1, 2)
        conv_features = torch.relu(self.second(torch.relu(self.first(image))))
        annotation: Tensor = self.project(conv_features.amax((2, 3)))
        return annotation


class Sinusoidal2dPositions(nn.Module):
    """Half of the numbers say the row, half the column, each as a Transformer says where a word stands; projected."""

    def __init__(self, size: int, max_side: int) -> None:
        super().__init__()
        self.size = size
        self.max_side = max_side
        self.project = nn.Linear(size, size)

    def forward(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Rows and columns B,S -> B,S,size."""
        half = self.size // 2
        table = [sinusoidal_table(0, self.max_side, width, rows.device) for width in (half, self.size - half)]
        encodings = torch.cat((table[0][rows], table[1][columns]), -1)
        projected: Tensor = self.project(encodings.to(self.project.weight.dtype))
        return projected


class Learned2dPositions(nn.Module):
    """A vector for each row and one for each column, added."""

    def __init__(self, size: int, max_side: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(max_side, size))
        self.columns = nn.Parameter(torch.randn(max_side, size))

    def forward(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Rows and columns B,S -> B,S,size."""
        return self.rows[rows] + self.columns[columns]


class SpatialConv(nn.Module):
    """A 3×3 convolution over the places, added to what it reads; beyond the edges of a grid there is nothing."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(size, size, 3, padding=1)

    def forward(self, x: Tensor, rows: Tensor, columns: Tensor, mask: Tensor) -> Tensor:
        """Annotations B,S,D at their rows and columns B,S -> B,S,D."""
        batch = torch.arange(len(x), device=x.device)[:, None]
        grid = x.new_zeros(len(x), int(rows.max()) + 1, int(columns.max()) + 1, x.shape[2])
        grid = grid.index_put((batch, rows, columns), x * mask[..., None], accumulate=True)  # padding adds zeros
        conv_features = self.convolution(grid.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return x + torch.relu(conv_features[batch, rows, columns])


class ImageEncoder(Encoder):
    """a_i = f(x_i) + place_i: annotations of places that keep apart, or, with neighbours, see those beside them.

    The backbone f, the places and the convolutions are handed in; each annotation is a key and a value.
    """

    def __init__(
        self,
        backbone: nn.Module,
        position_encoding: nn.Module | None,
        spatial_convs: list[SpatialConv],
        max_side: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.places = position_encoding
        self.neighbours = nn.ModuleList(spatial_convs)
        self.max_side = max_side
        self.dropout = nn.Dropout(dropout)

    def forward(self, source: Tensor, lengths: Tensor) -> Encoded:
        """Places B,S,F+2, right-padded, and how many there are B -> memory B,S,D."""
        mask = prefix_mask(lengths, source.shape[1])
        features, coordinates = source[..., :-NUM_COORDINATES], source[..., -NUM_COORDINATES:].long()
        if coordinates.numel() and int(coordinates.max()) >= self.max_side:
            raise ValueError(f"a grid of more than {self.max_side} rows or columns (model.max_side)")
        rows, columns = coordinates.unbind(-1)
        patch_features = self.backbone(features.flatten(0, 1)).unflatten(0, features.shape[:2])
        if self.places is not None:
            patch_features = patch_features + self.places(rows, columns).to(patch_features.dtype)
        for layer in self.neighbours:
            patch_features = layer(patch_features, rows, columns, mask)
        annotations = self.dropout(patch_features) * mask[..., None]
        return Encoded(Memory(annotations, annotations, mask), None)


def build_image_encoder(settings: ImageEncoderSettings, feature_size: int) -> ImageEncoder:
    """The encoder that the settings ask for, of places with so many features."""
    size = settings.memory_size
    backbones: dict[str, Callable[[], nn.Module]] = {
        "none": lambda: nn.Linear(feature_size, size),
        "cnn": lambda: PatchNet(settings.channels, size),
        "auto": lambda: PatchNet(settings.channels, size),  # until the data say that they are features
    }
    position_encodings: dict[str, Callable[[], nn.Module | None]] = {
        "none": lambda: None,
        "sinusoid": lambda: Sinusoidal2dPositions(size, settings.max_side),
        "learned": lambda: Learned2dPositions(size, settings.max_side),
    }
    convolutions = [SpatialConv(size) for _ in range(settings.neighbours)]
    backbone, position_encoding = backbones[settings.backbone](), position_encodings[settings.places]()
    return ImageEncoder(backbone, position_encoding, convolutions, settings.max_side, settings.dropout)
