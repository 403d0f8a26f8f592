"""Image preprocessing: cut pixels into patches, take features as they are, or run a pretrained network on the pixels.

The network (backbone) that extracted the features of a run is described by `backbone.yaml` beside them: network, layer,
weights, size and normalisation of images. With it the same features can be extracted from other images, and attention
weights be drawn over the right part of an image.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import yaml

from regard.config import parse_settings
from regard.errors import UserError, short_repr
from regard.recipes import parse_yaml
from regard.search import Floats
from regard.tasks.captioning.images import MAX_PIXELS, Array, ImageFile, import_pillow, is_image_array

BACKBONE_FILE = "backbone.yaml"
Pixels = npt.NDArray[np.uint8]
Precision = Literal["float16", "float32"]
_ARRAY_FORMATS = (
    "pixels (height, width, 3) of uint8, or features (height, width, features) or (positions, features) of floats"
)


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
        resized = image.fromarray(np.ascontiguousarray(array)).resize(
            (width, height), image.Resampling[self.interpolation.upper()]
        )
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
    try:
        text = backbone_path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{backbone_path} is not UTF-8 (byte {error.start + 1})") from error
    fields = parse_yaml(text, str(backbone_path))
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


class GridShape(NamedTuple):
    """Shape of an image's grid: rows, columns, features per position, and whether these are pixels."""

    rows: int
    columns: int
    features: int
    is_pixels: bool

    @property
    def num_positions(self) -> int:
        """Number of grid positions."""
        return self.rows * self.columns

    def fingerprint(self) -> str:
        """Return the text that the fingerprint of a dataset hashes; it is in state.json and must not change."""
        return f"Extent(rows={self.rows}, columns={self.columns}, features={self.features}, of_pixels={self.is_pixels})"


class ImageInput(NamedTuple):
    """Model input: features (L, F+2), the last two being row and column; and the pixels, if there are any.

    `window` is the part of the image that `pixels` show, if it was cropped.
    """

    position_features: Floats
    grid_shape: GridShape
    pixels: Pixels | None
    window: CropWindow | None = None


class ImagePreprocessor(NamedTuple):
    """Maximum image size, patch size, and the largest grid that the model supports.

    If the model was trained on features of a `backbone`, images are not cut into patches but passed through it.
    """

    image: int
    patch: int
    max_side: int
    backbone: Backbone | None = None
    device: torch.device = torch.device("cpu")

    def compute_grid_shape(self, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> GridShape:
        """Return the grid of an array of this shape; raise UserError if the model cannot read it."""
        if 0 in shape:
            raise UserError(f"{name}: the image is empty")
        if is_image_array(shape, dtype) and self.backbone:
            rows, columns, features = self.backbone.grid
            grid_shape = GridShape(rows, columns, features, True)
        elif is_image_array(shape, dtype):
            rows, columns = (-(-side // self.patch) for side in self._compute_scaled_shape(shape[0], shape[1]))
            grid_shape = GridShape(rows, columns, 3 * self.patch**2, True)
        elif dtype.kind == "f" and len(shape) in (2, 3):
            grid_shape = GridShape(shape[0] if len(shape) == 3 else 1, shape[-2], shape[-1], False)
        else:
            hint = "; of a file with many images, name a row" if len(shape) == 4 else ""
            size = " × ".join(map(str, shape)) or "one"
            raise UserError(f"{name}: an array of {size} {dtype} is not an image, which is {_ARRAY_FORMATS}{hint}")
        if max(grid_shape.rows, grid_shape.columns) > self.max_side:
            raise UserError(
                f"{name}: a grid of {grid_shape.rows:,} × {grid_shape.columns:,} positions, but the model supports "
                f"{self.max_side:,} rows and columns (model.max_side)"
            )
        return grid_shape

    def preprocess(self, array: Array, picture: ImageFile) -> ImageInput:
        """Return the model input for pixels or features."""
        grid_shape = self.compute_grid_shape(array.shape, array.dtype, picture.display_name)
        pixels, window = None, None
        if not grid_shape.is_pixels:
            features = _flatten_features(array, grid_shape, picture)
        elif self.backbone is None:
            pixels = self._pad_to_patches(array, grid_shape, picture)
            features = self._cut_patches(pixels, grid_shape)
        else:
            from regard.tasks.captioning.feature_extractor import rebuild_feature_extractor

            pixels = self.backbone.resize_and_crop(array, picture)
            window = self.backbone.compute_crop_window(*array.shape[:2])
            grids = rebuild_feature_extractor(self.backbone, self.device).extract_grids(pixels[None])
            features = _flatten_features(grids[0], grid_shape, picture)
        coordinates = np.stack(np.divmod(np.arange(grid_shape.num_positions), grid_shape.columns), -1)
        position_features = np.concatenate((features, coordinates), 1, dtype=np.float32)
        return ImageInput(position_features, grid_shape, pixels, window)

    def load_original_pixels(self, picture: ImageFile) -> Pixels | None:
        """Return the pixels that features were extracted from; None if the image is not named or unreadable."""
        if picture.original is None:
            return None
        try:
            array = picture.original.load()
            if not is_image_array(array.shape, array.dtype):
                return None
            return self.backbone.resize_and_crop(array, picture) if self.backbone else self._scale_down(array, picture)
        except UserError:  # the image is for plots only; the model needs just the features
            return None

    def _compute_scaled_shape(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width after scaling down to the maximum size."""
        factor = min(1.0, self.image / max(height, width))
        return max(1, round(height * factor)), max(1, round(width * factor))

    def _scale_down(self, array: Array, picture: ImageFile) -> Pixels:
        height, width = self._compute_scaled_shape(*array.shape[:2])
        if (height, width) == array.shape[:2]:
            return array
        return np.array(import_pillow(picture).fromarray(np.ascontiguousarray(array)).resize((width, height)))

    def _pad_to_patches(self, array: Array, grid_shape: GridShape, picture: ImageFile) -> Pixels:
        """Scale down an image that is too large, and pad it with black to whole patches."""
        scaled = self._scale_down(array, picture)
        padded = np.zeros((grid_shape.rows * self.patch, grid_shape.columns * self.patch, 3), dtype=np.uint8)
        padded[: scaled.shape[0], : scaled.shape[1]] = scaled
        return padded

    def _cut_patches(self, pixels: Pixels, grid_shape: GridShape) -> Floats:
        """Return the patches (L, 3·P·P) of an image, scaled to values from -1 to 1."""
        tiles = pixels.reshape(grid_shape.rows, self.patch, grid_shape.columns, self.patch, 3).transpose(0, 2, 1, 3, 4)
        patches = tiles.reshape(grid_shape.num_positions, grid_shape.features).astype(np.float32)
        return patches / np.float32(127.5) - np.float32(1)


def _flatten_features(array: Array, grid_shape: GridShape, picture: ImageFile) -> Floats:
    """Return features as (L, F) in float32; raise UserError for NaN or inf."""
    with np.errstate(over="ignore"):
        features = np.asarray(array, dtype=np.float32).reshape(grid_shape.num_positions, grid_shape.features)
    if not np.isfinite(features).all():
        raise picture.make_error("it has features that are NaN or inf")
    return features
