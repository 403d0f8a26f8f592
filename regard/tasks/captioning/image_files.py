"""Image files, and the caption files that name them.

Images are NumPy arrays (.npy) with one or many images or features, and PNG and JPEG, which Pillow reads. Nothing in a
file is ever run: object arrays are refused, and Pillow may decode two formats only. Captions are JSON lines, or TSV
lines with the path of an image and a caption.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.readers.dispatch import open_rows
from regard.data.readers.text import format_path, is_pipe, number_lines, parse_json_line
from regard.errors import UserError, short_repr, to_single_line
from regard.tokenizers.tokenizer import check_unicode

Array = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]
ARRAY_SUFFIX, KNOWN_SUFFIXES = ".npy", (".npy", ".png", ".jpg", ".jpeg")
_PILLOW_FORMATS = ("PNG", "JPEG")
MAX_PIXELS = 64_000_000  # per image; a small file can claim to be larger than any memory
_MAX_MAPPED_FILES = 32
_MULTI_IMAGE_DIMENSIONS = 4  # of an array (images, rows, columns, features)


class ImageFile(NamedTuple):
    """An image or feature file: path, row of a multi-image array, location for messages, original image."""

    path: Path
    row: int | None = None
    where: str = ""
    original: ImageFile | None = None

    @property
    def key(self) -> tuple[Path, int | None]:
        """Path and row, which identify the image among the lines that name it."""
        return self.path, self.row

    @property
    def name(self) -> str:
        """Path, and row if there is one."""
        return str(self.path) if self.row is None else f"{self.path}, row {self.row}"

    @property
    def display_name(self) -> str:
        """Name for messages."""
        return f"{self.where}: {self.name}" if self.where else self.name

    def make_error(self, problem: str) -> UserError:
        """Return a UserError about this image."""
        return UserError(f"{self.display_name}: {problem}")

    def read_shape_and_dtype(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and type as `load` would give them; of an image, without decoding its pixels."""
        if self.is_array():
            array = self._open_array()
            return array.shape, array.dtype
        width, height = self._decode_file(with_pixels=False)
        return (int(height), int(width), 3), np.dtype(np.uint8)

    def load(self) -> Array:
        """Return pixels (height, width, 3) of an image, or the memory-mapped array of a .npy file."""
        return self._open_array() if self.is_array() else self._decode_file(with_pixels=True)

    def compute_image_digest(self) -> str:
        """Return a digest of the content, which identifies an image regardless of its name."""
        if not self.is_array():
            self.check_exists()
            return hashlib.sha256(self.path.read_bytes()).hexdigest()
        array = self._open_array()
        if array.ndim == _MULTI_IMAGE_DIMENSIONS:
            raise self.make_error(f'it holds {len(array):,} images; choose one with "row", from 0')
        digest = hashlib.sha256(f"{array.shape} {array.dtype.str}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def split_rows(self) -> list[ImageFile]:
        """Return the images that the file holds: one for each row of a multi-image array."""
        if self.is_array() and len(self.read_shape_and_dtype()[0]) == _MULTI_IMAGE_DIMENSIONS:
            return [self._replace(row=row) for row in range(self.read_shape_and_dtype()[0][0])]
        return [self]

    def is_array(self) -> bool:
        """Return whether the name is that of a .npy file; raise UserError for unknown file types."""
        suffix = self.path.suffix.lower()
        if suffix not in KNOWN_SUFFIXES:
            raise self.make_error(f"unknown image type; the name must end in {', '.join(KNOWN_SUFFIXES)}")
        if suffix != ARRAY_SUFFIX and self.row is not None:
            raise self.make_error(f"only a {ARRAY_SUFFIX} file has rows")
        return suffix == ARRAY_SUFFIX

    def check_exists(self) -> None:
        """Raise UserError if the file does not exist."""
        try:
            exists = self.path.is_file()
        except (OSError, ValueError):  # invalid file name
            exists = False
        if not exists:
            raise UserError(f"{self.where}{': ' if self.where else ''}there is no file {short_repr(str(self.path))}")

    def _decode_file(self, with_pixels: bool) -> Any:
        import_pillow(self)
        self.check_exists()
        return decode_image(self.path, self, with_pixels)

    def _open_array(self) -> Array:
        """Return the array, or its row."""
        self.check_exists()
        try:
            array = _map_array_file(self.path, self.path.stat().st_mtime_ns)
        except Exception as error:  # NumPy raises many types for damaged headers
            raise self.make_error(f"it cannot be read as an array of numbers: {to_single_line(error)}") from error
        if self.row is None:
            return array
        if array.ndim < 1 or self.row >= len(array):
            raise self.make_error(f"the array has {len(array) if array.ndim else 0:,} rows, counted from 0")
        image: Array = array[self.row]
        return image


@lru_cache(maxsize=_MAX_MAPPED_FILES)
def _map_array_file(path: Path, _written: int) -> Array:
    """Memory-map an array; the modification time is part of the cache key. Object arrays are refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # headers of old NumPy versions
        array: Array = np.lib.format.open_memmap(path, mode="r")
    return array


def decode_image(file: Path | IO[bytes], picture: ImageFile, with_pixels: bool, max_pixels: int = MAX_PIXELS) -> Any:
    """Decode a PNG or JPEG image; messages use the name of `picture`.

    Returns:
        Pixels (height, width, 3), rotated as EXIF says; with `with_pixels=False` the tuple (width, height).
    """
    pillow = import_pillow(picture)
    from PIL import ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's warning about large images; the limit here is lower
            with pillow.open(file, formats=_PILLOW_FORMATS) as image:
                if image.width * image.height > max_pixels:
                    raise picture.make_error(
                        f"{image.width:,} × {image.height:,} pixels; the maximum is {max_pixels:,}"
                    )
                return np.array(ImageOps.exif_transpose(image).convert("RGB")) if with_pixels else image.size
    except UserError:
        raise
    except pillow.UnidentifiedImageError as error:  # Pillow's message shows a Python object
        raise picture.make_error("it cannot be read as an image: unknown format") from error
    except Exception as error:  # Pillow raises many types for damaged images
        raise picture.make_error(f"it cannot be read as an image: {to_single_line(error)}") from error


def is_image_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether an array holds pixels, (height, width, 3) of uint8, and not features."""
    return bool(dtype == np.uint8) and len(shape) == 3 and shape[2] == 3


def import_pillow(picture: ImageFile) -> Any:
    """Import Pillow's `Image` module; raise UserError with installation advice if that fails."""
    try:
        from PIL import Image
    except ImportError as error:
        raise picture.make_error("images need Pillow (pip install 'regard[images]'); .npy files do not") from error
    return Image


_NUMPY_MAGIC = b"\x93NUMPY"
_MAX_UPLOADED_PIXELS = 16_000_000  # a small request can claim to hold a large image
_DATA_URL_FORMAT = '{"image": "data:image/png;base64,…"}, with a .npy file as data:application/octet-stream'


def decode_data_url(request: Any) -> Array:
    """Return the pixels or features in the data URL of an untrusted JSON object."""
    url = request.get("image") if isinstance(request, Mapping) else None
    if not isinstance(url, str) or not url.startswith("data:"):
        raise UserError(f"an image must be {_DATA_URL_FORMAT}, not {short_repr(request)}")
    head, _, body = url.partition(",")
    if not head.endswith(";base64"):
        raise UserError(f"an image must be {_DATA_URL_FORMAT}, not a URL that begins with {short_repr(head)}")
    try:
        content = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UserError(f"the image is not valid base64: {to_single_line(error)}") from error
    if content.startswith(_NUMPY_MAGIC):
        file = io.BytesIO(content)
        try:
            array: Array = np.lib.format.read_array(file)
        except Exception as error:  # many types for damaged headers, a MemoryError for huge shapes, pickled objects
            raise UserError(f"the image cannot be read as an array of numbers: {to_single_line(error)}") from error
        if rest := len(content) - file.tell():
            raise UserError(f"the image has {rest:,} bytes behind the array of {array.shape} {array.dtype}")
        return array
    pixels: Array = decode_image(io.BytesIO(content), ImageFile(Path("the image")), True, _MAX_UPLOADED_PIXELS)
    return pixels


_JSON_FORMAT = '{"image": "path", "caption": "…"}, with "row": n where a .npy file holds many'


class WordGrounding(NamedTuple):
    """Grid cells of the objects that the words of a caption name, by the index of the word."""

    grid: tuple[int, int]
    cells: Mapping[int, Sequence[int]] = MappingProxyType({})


class CaptionExample(NamedTuple):
    """An image, a caption, and the grounding of the caption's words if it is known."""

    picture: ImageFile
    caption: str
    grounding: WordGrounding | None = None
    digest: str = ""  # of the image's content, once it is read


def read_captions(paths: Sequence[Path]) -> Iterator[CaptionExample]:
    """Yield the examples of several files; paths in them are relative to their folders."""
    for path in paths:
        suffix, lines = open_rows(path, "not a caption file")
        folder = Path() if is_pipe(path) else path.parent
        expected = f"a line is {_JSON_FORMAT}" if suffix == ".jsonl" else "expected a path, a tab and a caption"
        for picture, fields in parse_image_lines_with_fields(lines, folder, format_path(path), suffix):
            where, caption = picture.where, fields.get("caption")
            if not isinstance(caption, str):
                raise UserError(f"{where}: there is no caption; {expected}")
            for text in (caption, str(picture.path)):
                check_unicode(text, where)
            yield CaptionExample(picture, caption, _parse_grounding(fields, where))


def parse_image_lines(rows: Iterable[str], folder: Path = Path(), name: str = "") -> Iterator[ImageFile]:
    """Yield the images that lines name: a path, a path with a tab and a caption, or a JSON object."""
    return (picture for picture, _ in parse_image_lines_with_fields(rows, folder, name))


def parse_image_lines_with_fields(
    rows: Iterable[str], folder: Path, name: str, suffix: str = ""
) -> Iterator[tuple[ImageFile, dict[str, Any]]]:
    """Yield the images that lines name, each with the other fields of its line; further columns are ignored.

    The format is that of the `suffix`, `.jsonl` or `.tsv`; by default lines that begin with a brace are JSON.
    """
    for where, line in number_lines(rows, name):
        if not line.strip():
            continue
        if suffix == ".jsonl" or (not suffix and line.lstrip().startswith("{")):
            fields = parse_json_line(line, where)
            if not isinstance(fields, dict):
                raise UserError(f"{where}: not an image with a caption; a line is {_JSON_FORMAT}")
            picture = parse_image(fields, folder, where)
            yield picture, {key: value for key, value in fields.items() if key not in ("image", "row")}
        else:
            path, *columns = line.split("\t")
            if not path.strip():
                raise UserError(f"{where}: there is no path of an image before the tab")
            yield ImageFile(folder / path.strip(), None, where), {"caption": columns[0]} if columns else {}


def parse_image(fields: Mapping[str, Any], folder: Path = Path(), where: str = "") -> ImageFile:
    """Return the image that a JSON object names."""
    path, row, before = fields.get("image"), fields.get("row"), f"{where}: " if where else ""
    if not isinstance(path, str) or not path:
        raise UserError(f"{before}there is no image; it is {_JSON_FORMAT}")
    if row is not None and not _is_count(row):
        raise UserError(f"{before}row must be the index of an image in its file, from 0, not {short_repr(row)}")
    return ImageFile(folder / path, row, where, _parse_original(fields.get("original"), folder, where))


def _parse_original(fields: Any, folder: Path, where: str) -> ImageFile | None:
    """Return the image that features were extracted from, if the object names one."""
    if fields is None:
        return None
    if not isinstance(fields, dict):
        before = f"{where}: " if where else ""
        raise UserError(
            f'{before}original must name the image of the features, {{"image": "path"}}, not {short_repr(fields)}'
        )
    return parse_image(fields | {"original": None}, folder, where)


def _parse_grounding(fields: Mapping[str, Any], where: str) -> WordGrounding | None:
    """Return the grid cells that each word names, if the object has them."""
    cells, grid = fields.get("cells"), fields.get("grid")
    if cells is None:
        return None
    if not isinstance(grid, list) or len(grid) != 2 or not all(_is_count(side) and side for side in grid):
        raise UserError(f'{where}: cells need a "grid" of [rows, columns], not {short_repr(grid)}')
    if not isinstance(cells, dict):
        raise UserError(
            f'{where}: cells must be {{"index of a word": [cell, …]}}, both from 0, not {short_repr(cells)}'
        )
    size = grid[0] * grid[1]
    for word, word_cells in cells.items():
        if not (word.isascii() and word.isdigit() and len(word) < 9):
            raise UserError(f"{where}: the keys of cells must be indices of words, from 0, not {short_repr(word)}")
        if not isinstance(word_cells, list) or not all(_is_count(cell) and cell < size for cell in word_cells):
            raise UserError(f"{where}: cells must be below {size}, counted row by row, not {short_repr(word_cells)}")
    return WordGrounding((grid[0], grid[1]), {int(word): tuple(word_cells) for word, word_cells in cells.items()})


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 40


def add_image_digests(examples: Sequence[CaptionExample]) -> list[CaptionExample]:
    """Return the examples with a content digest of each one's image; each file or row is read once."""
    digests = {example.picture.key: example.digest for example in examples if example.digest}
    for example in examples:
        if example.picture.key not in digests:
            digests[example.picture.key] = example.picture.compute_image_digest()
    return [example._replace(digest=digests[example.picture.key]) for example in examples]


def group_captions_by_image(
    examples: Sequence[CaptionExample], max_images: int | None = None
) -> dict[ImageFile, list[str]]:
    """Return all captions of each image, or of the first `max_images`; images with equal content count as one."""
    first_files: dict[str, ImageFile] = {}
    captions: dict[ImageFile, list[str]] = {}
    for example in add_image_digests(examples):
        captions.setdefault(first_files.setdefault(example.digest, example.picture), []).append(example.caption)
    return dict(islice(captions.items(), max_images))
