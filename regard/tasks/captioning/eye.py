"""How a picture becomes the places that a model looks at: patches of pixels, or features as they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from regard.errors import UserError
from regard.models.grid import WHERE
from regard.search import Floats
from regard.tasks.captioning.backbone import Backbone, Pixels, Window
from regard.tasks.captioning.network import again
from regard.tasks.captioning.picture import Array, Picture, is_image, pillow

FORMS = "height × width × 3 bytes of an image, or features: height × width × features or places × features of floats"


class Extent(NamedTuple):
    """The places of a picture: rows, columns, numbers to a place, and whether these are pixels."""

    rows: int
    columns: int
    features: int
    of_pixels: bool

    @property
    def places(self) -> int:
        """How many there are."""
        return self.rows * self.columns

    def fingerprint(self) -> str:
        """Return the text that the fingerprint of a dataset hashes; it is in state.json and must not change."""
        return (
            f"Extent(rows={self.rows}, columns={self.columns}, features={self.features}, of_pixels={self.of_pixels})"
        )


class Sight(NamedTuple):
    """What a model sees: places L,F+2, each with its row and column at the end; and the image, if there is one.

    `window` is the part of the image that `pixels` are, where it is not all of it.
    """

    places: Floats
    extent: Extent
    pixels: Pixels | None
    window: Window | None = None


class Eye(NamedTuple):
    """How large images may be, into what patches they are cut, and how many rows or columns a model knows.

    Where the model has learnt from features of a `backbone`, images go through that, and none is cut into patches.
    """

    image: int
    patch: int
    max_side: int
    backbone: Backbone | None = None
    device: torch.device = torch.device("cpu")

    def extent(self, shape: tuple[int, ...], kind: np.dtype[Any], name: str) -> Extent:
        """The places of an array of this shape."""
        if 0 in shape:
            raise UserError(f"{name}: the picture is empty")
        if is_image(shape, kind) and self.backbone:
            rows, columns, features = self.backbone.grid
            found = Extent(rows, columns, features, True)
        elif is_image(shape, kind):
            rows, columns = (-(-side // self.patch) for side in self.scaled(shape[0], shape[1]))
            found = Extent(rows, columns, 3 * self.patch**2, True)
        elif kind.kind == "f" and len(shape) in (2, 3):
            found = Extent(shape[0] if len(shape) == 3 else 1, shape[-2], shape[-1], False)
        else:
            rows_of = "; a file of many pictures needs the row of one" if len(shape) == 4 else ""
            size = " × ".join(map(str, shape)) or "one"
            raise UserError(f"{name}: {size} numbers of the kind {kind} are no picture, which is {FORMS}{rows_of}")
        if max(found.rows, found.columns) > self.max_side:
            raise UserError(
                f"{name}: a grid of {found.rows:,} × {found.columns:,} places, and the model knows {self.max_side:,} "
                "rows and columns (model.max_side)"
            )
        return found

    def scaled(self, height: int, width: int) -> tuple[int, int]:
        """The size of an image that is not too large."""
        factor = min(1.0, self.image / max(height, width))
        return max(1, round(height * factor)), max(1, round(width * factor))

    def look(self, array: Array, picture: Picture) -> Sight:
        """What is seen of a picture."""
        extent = self.extent(array.shape, array.dtype, picture.name)
        if not extent.of_pixels:
            return Sight(placed(plain(array, extent, picture), extent), extent, None)
        if self.backbone is None:
            pixels = self.framed(array, extent, picture)
            return Sight(placed(self.cut(pixels, extent), extent), extent, pixels)
        pixels = self.backbone.framed(array, picture)
        grid = again(self.backbone, self.device).grids(pixels[None])[0]
        window = self.backbone.window(*array.shape[:2])
        return Sight(placed(plain(grid, extent, picture), extent), extent, pixels, window)

    def original(self, picture: Picture) -> Pixels | None:
        """Of the image that features are of, what they are features of; None where it is not named, or gone."""
        if picture.original is None:
            return None
        try:
            array = picture.original.load()
            if not is_image(array.shape, array.dtype):
                return None
            return self.backbone.framed(array, picture) if self.backbone else self.small(array, picture)
        except UserError:  # the features are all that the model needs, and a report without images is still one
            return None

    def framed(self, array: Array, extent: Extent, picture: Picture) -> Pixels:
        """The image, scaled down where it is too large, and filled up with black to whole patches."""
        small = self.small(array, picture)
        framed = np.zeros((extent.rows * self.patch, extent.columns * self.patch, 3), dtype=np.uint8)
        framed[: small.shape[0], : small.shape[1]] = small
        return framed

    def small(self, array: Array, picture: Picture) -> Pixels:
        """The image, scaled down where it is too large."""
        height, width = self.scaled(*array.shape[:2])
        if (height, width) == array.shape[:2]:
            return array
        return np.array(pillow(picture).fromarray(np.ascontiguousarray(array)).resize((width, height)))

    def cut(self, pixels: Pixels, extent: Extent) -> Floats:
        """The patches L,3·P·P of an image, each number from -1 to 1."""
        tiles = pixels.reshape(extent.rows, self.patch, extent.columns, self.patch, 3).transpose(0, 2, 1, 3, 4)
        return tiles.reshape(extent.places, extent.features).astype(np.float32) / np.float32(127.5) - np.float32(1)


def placed(features: Floats, extent: Extent) -> Floats:
    """Features L,F with the row and the column of each place behind them."""
    where = np.stack(np.divmod(np.arange(extent.places), extent.columns), -1)
    return np.concatenate((features, where), 1, dtype=np.float32)


def plain(array: Array, extent: Extent, picture: Picture) -> Floats:
    """Features L,F as they are."""
    with np.errstate(over="ignore"):
        features = np.asarray(array, dtype=np.float32).reshape(extent.places, extent.features)
    if not np.isfinite(features).all():
        raise picture.wrong("there are features that are no finite numbers")
    return features


def width(extent: Extent) -> int:
    """Numbers that stand for a place, with those that say where it is."""
    return extent.features + WHERE
