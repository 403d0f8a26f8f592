"""Pictures on the disk: NumPy's arrays, one picture or many to a file, and with Pillow PNG and JPEG.

Nothing in a file is ever run: arrays of objects are refused, and of images two formats alone are looked into.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import math
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.readers.text_io import to_single_line
from regard.errors import UserError, short_repr

Array = npt.NDArray[Any]
ARRAY_SUFFIX, IMAGE_SUFFIXES = ".npy", (".png", ".jpg", ".jpeg")
_PILLOW_FORMATS = ("PNG", "JPEG")
MAX_PIXELS = 64_000_000  # pixels of an image; a small file can claim to be much larger than any memory
_MAX_MAPPED_FILES = 32  # files that stay mapped
_MULTI_IMAGE_DIMENSIONS = 4  # dimensions of an array that holds many pictures, each with rows and columns


class ImageFile(NamedTuple):
    """A file, which of the pictures in it where it holds many, where it was named, and the image of its features."""

    path: Path
    row: int | None = None
    where: str = ""
    original: ImageFile | None = None

    @property
    def display_name(self) -> str:
        """What messages call it."""
        return f"{self.where}{': ' if self.where else ''}{self.path}{'' if self.row is None else f', row {self.row}'}"

    def make_error(self, problem: str) -> UserError:
        """What is said of a picture that cannot be had."""
        return UserError(f"{self.display_name}: {problem}")

    def read_shape_and_dtype(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and type as `load` would give them, of an image without reading its pixels."""
        if self.is_array():
            array = self._open_array()
            return array.shape, array.dtype
        width, height = _open_image(self, False)
        return (int(height), int(width), 3), np.dtype(np.uint8)

    def load(self) -> Array:
        """Height × width × 3 bytes of an image, or what an array holds, which is read when it is asked for."""
        return self._open_array() if self.is_array() else _open_image(self, True)

    def compute_image_digest(self) -> str:
        """Tells one picture from another, whatever it is called."""
        if not self.is_array():
            self.check_exists()
            return hashlib.sha256(self.path.read_bytes()).hexdigest()
        array = self._open_array()
        if array.ndim == _MULTI_IMAGE_DIMENSIONS:
            raise self.make_error(f'it holds {len(array):,} pictures, and "row", from 0, says which')
        found = hashlib.sha256(f"{array.shape} {array.dtype.str}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
        return found.hexdigest()

    def split_rows(self) -> list[ImageFile]:
        """The pictures that a file holds, which may be this one alone."""
        if self.is_array() and len(self.read_shape_and_dtype()[0]) == _MULTI_IMAGE_DIMENSIONS:
            return [self._replace(row=row) for row in range(self.read_shape_and_dtype()[0][0])]
        return [self]

    def is_array(self) -> bool:
        """Whether the file is NumPy's, by its name; a file that is none of those here is refused."""
        ending = self.path.suffix.lower()
        if ending != ARRAY_SUFFIX and ending not in IMAGE_SUFFIXES:
            raise self.make_error(
                f"a picture is a file of the kind {', '.join((ARRAY_SUFFIX, *IMAGE_SUFFIXES))}, by its name"
            )
        if ending != ARRAY_SUFFIX and self.row is not None:
            raise self.make_error(f"only a {ARRAY_SUFFIX} file has rows")
        return ending == ARRAY_SUFFIX

    def check_exists(self) -> None:
        """Refuses a file that is not there."""
        try:
            there = self.path.is_file()
        except (OSError, ValueError):  # a name that no file can have
            there = False
        if not there:
            raise UserError(f"{self.where}{': ' if self.where else ''}there is no file {short_repr(str(self.path))}")

    def _open_array(self) -> Array:
        """The array, or its row."""
        self.check_exists()
        try:
            whole = _map_array_file(self.path, self.path.stat().st_mtime_ns)
        except Exception as error:  # NumPy's reader of headers lets through whatever a damaged one makes it stumble on
            raise self.make_error(f"it cannot be read as an array of numbers: {to_single_line(error)}") from error
        if self.row is None:
            return whole
        if whole.ndim < 1 or self.row >= len(whole):
            raise self.make_error(f"the array has {len(whole) if whole.ndim else 0:,} rows, counted from 0")
        found: Array = whole[self.row]
        return found


@lru_cache(maxsize=_MAX_MAPPED_FILES)
def _map_array_file(path: Path, _written: int) -> Array:
    """An array in a file, mapped; the time it was written tells a new one from an old one. Objects are refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers as older versions wrote them
        found: Array = np.lib.format.open_memmap(path, mode="r")
    return found


def _open_image(picture: ImageFile, with_pixels: bool) -> Any:
    """An image's pixels, upright, as height × width × 3 bytes; or its width and height alone."""
    import_pillow(picture)
    picture.check_exists()
    return decode_image(picture.path, picture, with_pixels)


def decode_image(file: Path | IO[bytes], picture: ImageFile, with_pixels: bool, max_pixels: int = MAX_PIXELS) -> Any:
    """The same of an open file, which messages call by the picture's name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own word on large images; the limit here is lower
            with import_pillow(picture).open(file, formats=_PILLOW_FORMATS) as image:
                if image.width * image.height > max_pixels:
                    raise picture.make_error(
                        f"{image.width:,} × {image.height:,} pixels; an image has {max_pixels:,} at the most"
                    )
                return np.array(_apply_exif_rotation(image).convert("RGB")) if with_pixels else image.size
    except UserError:
        raise
    except import_pillow(picture).UnidentifiedImageError as error:  # whose message names an object of Python
        raise picture.make_error("it cannot be read as an image: it is of no kind that is known") from error
    except Exception as error:  # a damaged image makes Pillow's decoders raise all kinds
        raise picture.make_error(f"it cannot be read as an image: {to_single_line(error)}") from error


def is_image_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether an array is an image, and not features of one."""
    return bool(dtype == np.uint8) and len(shape) == 3 and shape[2] == 3


def _apply_exif_rotation(image: Any) -> Any:
    """The image as the camera was held."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


def import_pillow(picture: ImageFile) -> Any:
    """Pillow's module for images, or a word on how to have it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise picture.make_error("images need Pillow (pip install 'regard[images]'); .npy files do without") from error
    return Image


_NUMPY_MAGIC = b"\x93NUMPY"
_MAX_UPLOADED_PIXELS = 16_000_000  # pixels: a small body can claim to be a large image
_DATA_URL_FORMAT = '{"image": "data:image/png;base64,…"}, with a .npy file as data:application/octet-stream'


def decode_data_url(request: Any) -> Array:
    """The pixels or features that a JSON object holds as a data address."""
    address = request.get("image") if isinstance(request, Mapping) else None
    if not isinstance(address, str) or not address.startswith("data:"):
        raise UserError(f"a picture is {_DATA_URL_FORMAT}, not {short_repr(request)}")
    head, _, body = address.partition(",")
    if not head.endswith(";base64"):
        raise UserError(f"a picture is {_DATA_URL_FORMAT}, not one that begins with {short_repr(head)}")
    try:
        content = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UserError(f"the picture is no base64: {to_single_line(error)}") from error
    if content.startswith(_NUMPY_MAGIC):
        return _decode_numpy_array(content)
    found: Array = decode_image(io.BytesIO(content), ImageFile(Path("the picture")), True, _MAX_UPLOADED_PIXELS)
    return found


def _decode_numpy_array(content: bytes) -> Array:
    """NumPy's array in a file's bytes, if they are as many as it says."""
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, kind = header(file)
    except Exception as error:  # NumPy's reader of headers lets through whatever a damaged one makes it stumble on
        raise UserError(f"the picture cannot be read as an array of numbers: {to_single_line(error)}") from error
    if kind.hasobject or math.prod(shape) * kind.itemsize != len(content) - file.tell():
        raise UserError(f"the picture is not the array of {shape} {kind} that it says it is")
    return np.frombuffer(content, kind, offset=file.tell()).reshape(shape, order="F" if by_columns else "C")
