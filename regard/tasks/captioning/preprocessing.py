"""Image preprocessing: cut pixels into patches, take features as they are, or run a pretrained network on pixels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from regard.errors import UserError
from regard.models.hypothesis import Floats
from regard.tasks.captioning.backbone import Backbone, CropWindow
from regard.tasks.captioning.feature_extractor import rebuild_feature_extractor
from regard.tasks.captioning.image_files import Array, ImageFile, Pixels, import_pillow, is_image_array

_ARRAY_FORMATS = (
    "pixels (height, width, 3) of uint8, or features (height, width, features) or (positions, features) of floats"
)


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

    def read_grid_shape(self, picture: ImageFile) -> GridShape:
        """Return the grid of an image file."""
        return self.compute_grid_shape(*picture.read_shape_and_dtype(), picture.display_name)

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
