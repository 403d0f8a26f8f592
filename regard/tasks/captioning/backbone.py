"""The network (backbone) that extracted the features of a run.

`backbone.yaml` beside the features describes it: network, layer, weights, size and normalisation of images. With it the
same features can be extracted from other images, and attention weights be drawn over the right part of an image.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import yaml

from regard.config import parse_settings
from regard.errors import UserError, short_repr
from regard.recipes.recipe import parse_yaml, read_yaml_text
from regard.tasks.captioning.image_files import MAX_PIXELS, Array, ImageFile, Pixels, import_pillow

BACKBONE_FILE = "backbone.yaml"
Precision = Literal["float16", "float32"]


class CropWindow(NamedTuple):
    """The part of an image that the network sees; each side as a fraction of the image's width or height."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """Network, layer, weights and preprocessing, as needed to extract the same features again."""

    network: str  # torchvision's name
    layer: str  # torchvision's name
    weights: str  # torchvision's name, a file, or `random`
    checksum: str  # SHA-256 of the weights that the features depend on
    grid: tuple[int, ...]  # rows, columns, features
    side: int  # width and height of the centre crop, in pixels
    resize: int  # the shorter side of the image is scaled to this many pixels before cropping
    interpolation: Literal["bilinear", "bicubic"]
    mean: tuple[float, ...]  # of each colour channel, values from 0 to 1
    std: tuple[float, ...]
    precision: Precision  # in which the features are stored

    def __post_init__(self) -> None:
        if not 1 <= self.side <= self.resize:
            raise ValueError(f"side is at least 1 and at most resize, {self.resize}, not {self.side}")
        if len(self.grid) != 3 or min(self.grid) < 1:
            raise ValueError(f"grid must be [rows, columns, features], not {list(self.grid)}")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(self.std):
            raise ValueError("mean and std must have a value for each of three colours, and std must not be 0")

    def describe(self) -> str:
        """Return network, layer, weights and image size for messages."""
        return f"{self.network} {self.layer} ({self.weights}, {self.side} pixels)"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as YAML can hold them."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    def write(self, folder: Path) -> None:
        """Write `backbone.yaml` into the folder of the features."""
        text = yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)
        (folder / BACKBONE_FILE).write_text(text, encoding="utf-8")

    def is_compatible_with(self, other: Backbone) -> bool:
        """Return whether two backbones give the same features, regardless of where the weights are stored."""
        return replace(self, weights=other.weights) == other

    def resize_and_crop(self, array: Array, picture: ImageFile) -> Pixels:
        """Scale the shorter side of an image (height, width, 3) and crop the centre to (side, side, 3)."""
        height, width, top, left = self._compute_crop(*array.shape[:2])
        if height * width > MAX_PIXELS:
            raise picture.make_error(f"{width:,} × {height:,} pixels after scaling; the maximum is {MAX_PIXELS:,}")
        image = import_pillow(picture)
        resampling = image.Resampling[self.interpolation.upper()]
        resized = image.fromarray(np.ascontiguousarray(array)).resize((width, height), resampling)
        cropped: Pixels = np.array(resized.crop((left, top, left + self.side, top + self.side)))
        return cropped

    def compute_crop_window(self, height: int, width: int) -> CropWindow:
        """Return the part of an image of this size that `resize_and_crop` keeps."""
        height, width, top, left = self._compute_crop(height, width)
        return CropWindow(left / width, top / height, (left + self.side) / width, (top + self.side) / height)

    def _compute_crop(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return height and width after the shorter side is scaled to `resize`, and top and left of the crop."""
        shorter = min(height, width)
        height, width = (int(self.resize * length / shorter) for length in (height, width))
        return height, width, round((height - self.side) / 2), round((width - self.side) / 2)


def read_backbone_file(path: Path) -> Backbone | None:
    """Read the `backbone.yaml` in the folder of a file; return None if there is none."""
    backbone_path = path.parent / BACKBONE_FILE
    if not backbone_path.is_file():
        return None
    fields = parse_yaml(read_yaml_text(backbone_path), str(backbone_path))
    if not isinstance(fields, dict):
        raise UserError(f"{backbone_path} must be a mapping that describes a network, not {short_repr(fields)}")
    return parse_settings(Backbone, fields, str(backbone_path))


def find_common_backbone(
    paths: Iterable[Path], expected: Backbone | None = None, expected_by: str = "the run"
) -> Backbone | None:
    """Return the backbone of all files' features; raise UserError if two files differ. None if no file names one.

    Args:
        paths: Files of captions that name features.
        expected: Backbone that the features must come from.
        expected_by: Source of `expected`, for the message.
    """
    for path in paths:
        backbone = read_backbone_file(path)
        if backbone and expected and not backbone.is_compatible_with(expected):
            raise UserError(
                f"{path}: features of {backbone.describe()}, but those of {expected_by} are of {expected.describe()}"
            )
        if backbone and not expected:
            expected, expected_by = backbone, str(path)
    return expected
