"""The network that made features of images: which one, up to which layer, and what of an image it was shown.

A file `backbone.yaml` beside the features says it. So the same can be done to other images, and weights be drawn over
the part of an image that they are of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import yaml

from regard.config import parse_settings
from regard.data.settings import BaseDataSettings
from regard.errors import UserError, short_repr
from regard.recipes import parse_yaml
from regard.tasks.captioning.images import MAX_PIXELS, Array, ImageFile, import_pillow

BACKBONE_FILE = "backbone.yaml"
Pixels = npt.NDArray[np.uint8]
Precision = Literal["float16", "float32"]


class CropWindow(NamedTuple):
    """The part of an image that is seen, each side as a share of the image's width or height."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """All that it takes to make the same features again."""

    network: str  # as torchvision calls it
    layer: str  # likewise
    weights: str  # torchvision's name for them, a file, or `random`
    checksum: str  # of those weights that the features depend on
    grid: tuple[int, ...]  # rows, columns, features
    side: int  # pixels, after …
    resize: int  # … the shorter side of the image was given so many
    interpolation: Literal["bilinear", "bicubic"]
    mean: tuple[float, ...]  # of each colour, from 0 to 1
    std: tuple[float, ...]
    precision: Precision  # that the features are kept in

    def __post_init__(self) -> None:
        if not 1 <= self.side <= self.resize:
            raise ValueError(f"side is at least 1 and at most resize, {self.resize}, not {self.side}")
        if len(self.grid) != 3 or min(self.grid) < 1:
            raise ValueError(f"grid is rows, columns and features, not {list(self.grid)}")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(self.std):
            raise ValueError("mean and std are of three colours, and std is not 0")

    def describe(self) -> str:
        """In a few words."""
        return f"{self.network} {self.layer} ({self.weights}, {self.side} pixels)"

    def to_dict(self) -> dict[str, Any]:
        """As YAML has it."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    def write(self, folder: Path) -> None:
        """Puts it down beside the features."""
        written = yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)
        (folder / BACKBONE_FILE).write_text(written, encoding="utf-8")

    def is_compatible_with(self, other: Backbone) -> bool:
        """Whether features of both are of one kind, wherever the weights are kept."""
        return replace(self, weights=other.weights) == other

    def resize_and_crop(self, array: Array, picture: ImageFile) -> Pixels:
        """Height × width × 3 -> side × side × 3: the middle of the image, its shorter side scaled."""
        height, width = self._compute_resized_shape(array.shape[0], array.shape[1])
        if height * width > MAX_PIXELS:
            raise picture.make_error(
                f"{width:,} × {height:,} pixels when scaled; an image has {MAX_PIXELS:,} at the most"
            )
        image = import_pillow(picture)
        filters = {"bilinear": image.Resampling.BILINEAR, "bicubic": image.Resampling.BICUBIC}
        made = image.fromarray(np.ascontiguousarray(array)).resize((width, height), filters[self.interpolation])
        top, left = (round((length - self.side) / 2) for length in (height, width))
        framed: Pixels = np.array(made.crop((left, top, left + self.side, top + self.side)))
        return framed

    def _compute_resized_shape(self, height: int, width: int) -> tuple[int, int]:
        """The size of an image whose shorter side has as many pixels as it should."""
        shorter = min(height, width)
        return tuple(int(self.resize * length / shorter) for length in (height, width))  # type: ignore[return-value]

    def compute_crop_window(self, height: int, width: int) -> CropWindow:
        """Which part of an image of this size `framed` shows."""
        tall, wide = self._compute_resized_shape(height, width)
        top, left = (round((length - self.side) / 2) for length in (tall, wide))
        return CropWindow(left / wide, top / tall, (left + self.side) / wide, (top + self.side) / tall)


def read_backbone_beside(path: Path) -> Backbone | None:
    """What made the features that a file names, if a `backbone.yaml` says it."""
    backbone_path = path.parent / BACKBONE_FILE
    if not backbone_path.is_file():
        return None
    try:
        written = backbone_path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{backbone_path} is not UTF-8 (byte {error.start + 1})") from error
    found = parse_yaml(written, str(backbone_path))
    if not isinstance(found, dict):
        raise UserError(f"{backbone_path} says which network made features, key by key, not {short_repr(found)}")
    return parse_settings(Backbone, found, str(backbone_path))


def find_common_backbone(
    paths: Iterable[Path], expected: Backbone | None = None, expected_by: str = "the run"
) -> Backbone | None:
    """What made the features of all files, as far as they say it; `known` is what made those of `whose`."""
    for path in paths:
        found = read_backbone_beside(path)
        if found and expected and not found.is_compatible_with(expected):
            raise UserError(
                f"{path}: features of {found.describe()}, and those of {expected_by} are of {expected.describe()}"
            )
        if found and not expected:
            expected, expected_by = found, str(path)
    return expected


@dataclass(frozen=True, kw_only=True)
class CaptionSettings(BaseDataSettings):
    """Which images are trained on, and how they are cut into places."""

    image: int = 224
    patch: int = 16
    features: int | None = None
    backbone: Backbone | None = None
    max_length: int = 50
    dev_pairs: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("image", "patch", "features", "max_length", "dev_pairs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is at least 1, not {value}")
        if self.patch > self.image:
            raise ValueError(f"patch is a part of an image of {self.image} pixels, not {self.patch}")
