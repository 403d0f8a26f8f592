"""Pictures on the disk: NumPy's arrays, one picture or many to a file, and with Pillow PNG and JPEG.

Nothing in a file is ever run: arrays of objects are refused, and of images two formats alone are looked into.
"""

from __future__ import annotations

import hashlib
import warnings
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.files import in_a_line
from regard.errors import UserError, shown

Array = npt.NDArray[Any]
ARRAY, IMAGES = ".npy", (".png", ".jpg", ".jpeg")
FORMATS = ("PNG", "JPEG")
MOST = 64_000_000  # pixels of an image; a small file can claim to be much larger than any memory
OPEN = 32  # files that stay mapped
MANY = 4  # dimensions of an array that holds many pictures, each with rows and columns


class Picture(NamedTuple):
    """A file, which of the pictures in it where it holds many, where it was named, and the image of its features."""

    path: Path
    row: int | None = None
    where: str = ""
    original: Picture | None = None

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.where}{': ' if self.where else ''}{self.path}{'' if self.row is None else f', row {self.row}'}"

    def wrong(self, what: str) -> UserError:
        """What is said of a picture that cannot be had."""
        return UserError(f"{self.name}: {what}")

    def header(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and type as `load` would give them, of an image without reading its pixels."""
        if self.is_array():
            array = self.array()
            return array.shape, array.dtype
        width, height = opened(self, False)
        return (int(height), int(width), 3), np.dtype(np.uint8)

    def load(self) -> Array:
        """Height × width × 3 bytes of an image, or what an array holds, which is read when it is asked for."""
        return self.array() if self.is_array() else opened(self, True)

    def digest(self) -> str:
        """Tells one picture from another, whatever it is called."""
        if not self.is_array():
            self.check()
            return hashlib.sha256(self.path.read_bytes()).hexdigest()
        array = self.array()
        if array.ndim == MANY:
            raise self.wrong(f'it holds {len(array):,} pictures, and "row", from 0, says which')
        found = hashlib.sha256(f"{array.shape} {array.dtype.str}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
        return found.hexdigest()

    def each(self) -> list[Picture]:
        """The pictures that a file holds, which may be this one alone."""
        if self.is_array() and len(self.header()[0]) == MANY:
            return [self._replace(row=row) for row in range(self.header()[0][0])]
        return [self]

    def is_array(self) -> bool:
        """Whether the file is NumPy's, by its name; a file that is none of those here is refused."""
        ending = self.path.suffix.lower()
        if ending != ARRAY and ending not in IMAGES:
            raise self.wrong(f"a picture is a file of the kind {', '.join((ARRAY, *IMAGES))}, by its name")
        if ending != ARRAY and self.row is not None:
            raise self.wrong(f"only a {ARRAY} file has rows")
        return ending == ARRAY

    def check(self) -> None:
        """Refuses a file that is not there."""
        try:
            there = self.path.is_file()
        except (OSError, ValueError):  # a name that no file can have
            there = False
        if not there:
            raise UserError(f"{self.where}{': ' if self.where else ''}there is no file {shown(str(self.path))}")

    def array(self) -> Array:
        """The array, or its row."""
        self.check()
        try:
            whole = mapped(self.path, self.path.stat().st_mtime_ns)
        except Exception as error:  # NumPy's reader of headers lets through whatever a damaged one makes it stumble on
            raise self.wrong(f"it cannot be read as an array of numbers: {in_a_line(error)}") from error
        if self.row is None:
            return whole
        if whole.ndim < 1 or self.row >= len(whole):
            raise self.wrong(f"the array has {len(whole) if whole.ndim else 0:,} rows, counted from 0")
        found: Array = whole[self.row]
        return found


@lru_cache(maxsize=OPEN)
def mapped(path: Path, _written: int) -> Array:
    """An array in a file, mapped; the time it was written tells a new one from an old one. Objects are refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers as older versions wrote them
        found: Array = np.lib.format.open_memmap(path, mode="r")
    return found


def opened(picture: Picture, whole: bool) -> Any:
    """An image's pixels, upright, as height × width × 3 bytes; or its width and height alone."""
    pillow(picture)
    picture.check()
    return decoded(picture.path, picture, whole)


def decoded(file: Path | IO[bytes], picture: Picture, whole: bool, most: int = MOST) -> Any:
    """The same of an open file, which messages call by the picture's name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own word on large images; the limit here is lower
            with pillow(picture).open(file, formats=FORMATS) as image:
                if image.width * image.height > most:
                    raise picture.wrong(f"{image.width:,} × {image.height:,} pixels; an image has {most:,} at the most")
                return np.array(upright(image).convert("RGB")) if whole else image.size
    except UserError:
        raise
    except pillow(picture).UnidentifiedImageError as error:  # whose message names an object of Python
        raise picture.wrong("it cannot be read as an image: it is of no kind that is known") from error
    except Exception as error:  # a damaged image makes Pillow's decoders raise all kinds
        raise picture.wrong(f"it cannot be read as an image: {in_a_line(error)}") from error


def is_image(shape: tuple[int, ...], kind: np.dtype[Any]) -> bool:
    """Whether an array is an image, and not features of one."""
    return bool(kind == np.uint8) and len(shape) == 3 and shape[2] == 3


def upright(image: Any) -> Any:
    """The image as the camera was held."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


def pillow(picture: Picture) -> Any:
    """Pillow's module for images, or a word on how to have it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise picture.wrong("images need Pillow (pip install 'regard[images]'); .npy files do without") from error
    return Image
