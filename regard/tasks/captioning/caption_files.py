"""Read caption files: JSON lines, or TSV lines with the path of an image and a caption."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from regard.data.readers.dispatch import open_rows
from regard.data.readers.jsonl import is_valid_unicode, make_surrogate_error, parse_json_line
from regard.data.readers.text import format_path, is_pipe
from regard.errors import UserError, short_repr
from regard.tasks.captioning.images import ImageFile

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


_CaptionParser = Callable[[Iterable[str], str, Path], Iterator[CaptionExample]]


def read_captions(paths: Sequence[Path]) -> Iterator[CaptionExample]:
    """Yield the examples of several files; raise UserError for text that is not valid Unicode."""
    for path in paths:
        for example in read_caption_file(path):
            if not is_valid_unicode(example.caption) or not is_valid_unicode(str(example.picture.path)):
                raise make_surrogate_error(example.picture.where)
            yield example


def read_caption_file(path: Path) -> Iterator[CaptionExample]:
    """Yield the examples of one file; paths in it are relative to its folder."""
    suffix, lines = open_rows(path, "not a caption file")
    folder = Path() if is_pipe(path) else path.parent
    return _CAPTION_PARSERS[suffix](lines, format_path(path), folder)


def _parse_caption_tsv(rows: Iterable[str], name: str, folder: Path) -> Iterator[CaptionExample]:
    """Yield examples from TSV lines: path, caption. Further columns and blank lines are ignored."""
    for number, line in enumerate(rows, 1):
        if line.strip():
            where, (path, tab, rest) = f"{name}:{number}", line.partition("\t")
            if not tab or not path.strip():
                raise UserError(f"{where}: expected a path, a tab and a caption, not {short_repr(line)}")
            yield CaptionExample(ImageFile(folder / path.strip(), None, where), rest.split("\t")[0])


def _parse_caption_jsonl(rows: Iterable[str], name: str, folder: Path) -> Iterator[CaptionExample]:
    for number, line in enumerate(rows, 1):
        if line.strip():
            where = f"{name}:{number}"
            fields = _parse_json_object(line, where)
            caption = fields.get("caption")
            if not isinstance(caption, str):
                raise UserError(f"{where}: there is no caption; a line of a .jsonl file is {_JSON_FORMAT}")
            yield CaptionExample(parse_image(fields, folder, where), caption, _parse_grounding(fields, where))


_CAPTION_PARSERS: dict[str, _CaptionParser] = {".jsonl": _parse_caption_jsonl, ".tsv": _parse_caption_tsv}


def parse_image_lines(rows: Iterable[str], folder: Path = Path(), name: str = "") -> Iterator[ImageFile]:
    """Yield the images that lines name: a path, a path with a tab and a caption, or a JSON object."""
    return (picture for picture, _ in parse_image_lines_with_fields(rows, folder, name))


def parse_image_lines_with_fields(
    rows: Iterable[str], folder: Path, name: str
) -> Iterator[tuple[ImageFile, dict[str, Any]]]:
    """Yield the images that lines name, each with the other fields of its line."""
    for number, line in enumerate(rows, 1):
        where = f"{name}:{number}" if name else f"line {number}"
        if line.lstrip().startswith("{"):
            fields = _parse_json_object(line, where)
            picture = parse_image(fields, folder, where)
            yield picture, {key: value for key, value in fields.items() if key not in ("image", "row")}
        elif line.strip():
            path, tab, rest = line.partition("\t")
            yield ImageFile(folder / path.strip(), None, where), {"caption": rest.split("\t")[0]} if tab else {}


def _parse_json_object(line: str, where: str) -> dict[str, Any]:
    fields = parse_json_line(line, where)
    if not isinstance(fields, dict):
        raise UserError(f"{where}: not an image with a caption; a line of a .jsonl file is {_JSON_FORMAT}")
    return fields


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
    for word, word_cells in cells.items():
        if not (word.isascii() and word.isdigit() and len(word) < 9):
            raise UserError(f"{where}: the keys of cells must be indices of words, from 0, not {short_repr(word)}")
        if not isinstance(word_cells, list) or not all(
            _is_count(cell) and cell < grid[0] * grid[1] for cell in word_cells
        ):
            raise UserError(
                f"{where}: cells must be below {grid[0] * grid[1]}, counted row by row, not {short_repr(word_cells)}"
            )
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
