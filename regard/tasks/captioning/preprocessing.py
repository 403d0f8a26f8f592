"""How a picture becomes the places that a model looks at: patches of pixels, or features as they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from regard.errors import UserError
from regard.models.image_encoder import NUM_COORDINATES
from regard.search import Floats
from regard.tasks.captioning.backbone import Backbone, CropWindow, Pixels
from regard.tasks.captioning.feature_extractor import rebuild_feature_extractor
from regard.tasks.captioning.images import Array, ImageFile, import_pillow, is_image_array

_ARRAY_FORMATS = (
    "height × width × 3 bytes of an image, or features: height × width × features or places × features of floats"
)


class GridShape(NamedTuple):
    """The places of a picture: rows, columns, numbers to a place, and whether these are pixels."""

    rows: int
    columns: int
    features: int
    is_pixels: bool

    @property
    def num_positions(self) -> int:
        """How many there are."""
        return self.rows * self.columns

    def fingerprint(self) -> str:
        """Return the text that the fingerprint of a dataset hashes; it is in state.json and must not change."""
        return f"Extent(rows={self.rows}, columns={self.columns}, features={self.features}, of_pixels={self.is_pixels})"


class ImageInput(NamedTuple):
    """What a model sees: places L,F+2, each with its row and column at the end; and the image, if there is one.

    `window` is the part of the image that `pixels` are, where it is not all of it.
    """

    position_features: Floats
    grid_shape: GridShape
    pixels: Pixels | None
    window: CropWindow | None = None


class ImagePreprocessor(NamedTuple):
    """How large images may be, into what patches they are cut, and how many rows or columns a model knows.

    Where the model has learnt from features of a `backbone`, images go through that, and none is cut into patches.
    """

    image: int
    patch: int
    max_side: int
    backbone: Backbone | None = None
    device: torch.device = torch.device("cpu")

    def compute_grid_shape(self, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> GridShape:
        """The places of an array of this shape."""
        if 0 in shape:
            raise UserError(f"{name}: the picture is empty")
        if is_image_array(shape, dtype) and self.backbone:
            rows, columns, features = self.backbone.grid
            found = GridShape(rows, columns, features, True)
        elif is_image_array(shape, dtype):
            rows, columns = (-(-side // self.patch) for side in self._compute_scaled_shape(shape[0], shape[1]))
            found = GridShape(rows, columns, 3 * self.patch**2, True)
        elif dtype.kind == "f" and len(shape) in (2, 3):
            found = GridShape(shape[0] if len(shape) == 3 else 1, shape[-2], shape[-1], False)
        else:
            rows_of = "; a file of many pictures needs the row of one" if len(shape) == 4 else ""
            size = " × ".join(map(str, shape)) or "one"
            raise UserError(
                f"{name}: {size} numbers of the kind {dtype} are no picture, which is {_ARRAY_FORMATS}{rows_of}"
            )
        if max(found.rows, found.columns) > self.max_side:
            raise UserError(
                f"{name}: a grid of {found.rows:,} × {found.columns:,} places, and the model knows {self.max_side:,} "
                "rows and columns (model.max_side)"
            )
        return found

    def _compute_scaled_shape(self, height: int, width: int) -> tuple[int, int]:
        """The size of an image that is not too large."""
        factor = min(1.0, self.image / max(height, width))
        return max(1, round(height * factor)), max(1, round(width * factor))

    def preprocess(self, array: Array, picture: ImageFile) -> ImageInput:
        """What is seen of a picture."""
        grid_shape = self.compute_grid_shape(array.shape, array.dtype, picture.display_name)
        if not grid_shape.is_pixels:
            return ImageInput(
                _append_coordinates(_flatten_features(array, grid_shape, picture), grid_shape), grid_shape, None
            )
        if self.backbone is None:
            pixels = self._pad_to_patches(array, grid_shape, picture)
            return ImageInput(
                _append_coordinates(self._cut_patches(pixels, grid_shape), grid_shape), grid_shape, pixels
            )
        pixels = self.backbone.resize_and_crop(array, picture)
        grid = rebuild_feature_extractor(self.backbone, self.device).extract_grids(pixels[None])[0]
        window = self.backbone.compute_crop_window(*array.shape[:2])
        return ImageInput(
            _append_coordinates(_flatten_features(grid, grid_shape, picture), grid_shape), grid_shape, pixels, window
        )

    def load_original_pixels(self, picture: ImageFile) -> Pixels | None:
        """Of the image that features are of, what they are features of; None where it is not named, or gone."""
        if picture.original is None:
            return None
        try:
            array = picture.original.load()
            if not is_image_array(array.shape, array.dtype):
                return None
            return self.backbone.resize_and_crop(array, picture) if self.backbone else self._scale_down(array, picture)
        except UserError:  # the features are all that the model needs, and a report without images is still one
            return None

    def _pad_to_patches(self, array: Array, grid_shape: GridShape, picture: ImageFile) -> Pixels:
        """The image, scaled down where it is too large, and filled up with black to whole patches."""
        small = self._scale_down(array, picture)
        framed = np.zeros((grid_shape.rows * self.patch, grid_shape.columns * self.patch, 3), dtype=np.uint8)
        framed[: small.shape[0], : small.shape[1]] = small
        return framed

    def _scale_down(self, array: Array, picture: ImageFile) -> Pixels:
        """The image, scaled down where it is too large."""
        height, width = self._compute_scaled_shape(*array.shape[:2])
        if (height, width) == array.shape[:2]:
            return array
        return np.array(import_pillow(picture).fromarray(np.ascontiguousarray(array)).resize((width, height)))

    def _cut_patches(self, pixels: Pixels, grid_shape: GridShape) -> Floats:
        """The patches L,3·P·P of an image, each number from -1 to 1."""
        tiles = pixels.reshape(grid_shape.rows, self.patch, grid_shape.columns, self.patch, 3).transpose(0, 2, 1, 3, 4)
        return tiles.reshape(grid_shape.num_positions, grid_shape.features).astype(np.float32) / np.float32(
            127.5
        ) - np.float32(1)


def _append_coordinates(features: Floats, grid_shape: GridShape) -> Floats:
    """Features L,F with the row and the column of each place behind them."""
    where = np.stack(np.divmod(np.arange(grid_shape.num_positions), grid_shape.columns), -1)
    return np.concatenate((features, where), 1, dtype=np.float32)


def _flatten_features(array: Array, grid_shape: GridShape, picture: ImageFile) -> Floats:
    """Features L,F as they are."""
    with np.errstate(over="ignore"):
        features = np.asarray(array, dtype=np.float32).reshape(grid_shape.num_positions, grid_shape.features)
    if not np.isfinite(features).all():
        raise picture.make_error("there are features that are no finite numbers")
    return features


def _count_input_features(grid_shape: GridShape) -> int:
    """Numbers that stand for a place, with those that say where it is."""
    return grid_shape.features + NUM_COORDINATES
