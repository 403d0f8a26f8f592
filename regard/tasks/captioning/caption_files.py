"""Files of captions: JSON lines, or a path, a tab and a sentence a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from regard.data.readers.dispatch import find_format_suffix
from regard.data.readers.jsonl import is_valid_unicode, make_surrogate_error, parse_json_line
from regard.data.readers.text_io import (
    DECOMPRESSORS,
    STANDARD_INPUT,
    decode_lines,
    detect_format,
    format_path,
    iterate_lines,
    open_decompressed,
    peek_bytes,
)
from regard.errors import UserError, short_repr
from regard.tasks.captioning.images import ImageFile

_JSON_FORMAT = '{"image": "path", "caption": "…"}, with "row": n where a .npy file holds many'


class WordGrounding(NamedTuple):
    """Which cells of a grid the words of a caption name: by the number of the word, from 0."""

    grid: tuple[int, int]
    cells: Mapping[int, Sequence[int]] = MappingProxyType({})


class CaptionExample(NamedTuple):
    """A picture, a sentence about it, and what its words name, where that is known."""

    picture: ImageFile
    caption: str
    grounding: WordGrounding | None = None


_CaptionParser = Callable[[Iterable[str], str, Path], Iterator[CaptionExample]]


def read_captions(paths: Sequence[Path]) -> Iterator[CaptionExample]:
    """The examples of some files, one behind the other."""
    for path in paths:
        for example in read_caption_file(path):
            if not is_valid_unicode(example.caption) or not is_valid_unicode(str(example.picture.path)):
                raise make_surrogate_error(example.picture.where)
            yield example


def read_caption_file(path: Path) -> Iterator[CaptionExample]:
    """Those of one file; paths in it are relative to the folder that it is in."""
    if find_format_suffix(path) in _CAPTION_PARSERS:
        return _CAPTION_PARSERS[find_format_suffix(path)](iterate_lines(path), format_path(path), path.parent)
    if path == STANDARD_INPUT or path.is_fifo():
        return _read_caption_pipe(path)
    if not path.exists():
        raise UserError(f"there is no file {path}")
    raise UserError(
        f"{path} is not of a kind that holds captions ({', '.join(_CAPTION_PARSERS)}, also {', '.join(DECOMPRESSORS)}; - for "
        "standard input)"
    )


def _read_caption_pipe(pipe: Path) -> Iterator[CaptionExample]:
    """What comes through a pipe, whose first bytes say in which form."""
    with open_decompressed(pipe) as file:
        kind = detect_format(peek_bytes(file))
        yield from _CAPTION_PARSERS.get(kind, _parse_caption_tsv)(decode_lines(file, pipe), format_path(pipe), Path())


def _parse_caption_tsv(rows: Iterable[str], name: str, folder: Path) -> Iterator[CaptionExample]:
    """A path, a tab and a caption in each line; further columns are left alone, and so are blank lines."""
    for number, line in enumerate(rows, 1):
        if line.strip():
            where, (path, tab, rest) = f"{name}:{number}", line.partition("\t")
            if not tab or not path.strip():
                raise UserError(f"{where}: a line is a path, a tab and a caption, not {short_repr(line)}")
            yield CaptionExample(ImageFile(folder / path.strip(), None, where), rest.split("\t")[0])


def _parse_caption_jsonl(rows: Iterable[str], name: str, folder: Path) -> Iterator[CaptionExample]:
    """An object in each line."""
    for number, line in enumerate(rows, 1):
        if line.strip():
            where = f"{name}:{number}"
            given = _parse_json_object(line, where)
            caption = given.get("caption")
            if not isinstance(caption, str):
                raise UserError(f"{where}: there is no caption; a line of a .jsonl file is {_JSON_FORMAT}")
            yield CaptionExample(parse_image(given, folder, where), caption, _parse_grounding(given, where))


_CAPTION_PARSERS: dict[str, _CaptionParser] = {".jsonl": _parse_caption_jsonl, ".tsv": _parse_caption_tsv}


def parse_image_lines(rows: Iterable[str], folder: Path = Path(), name: str = "") -> Iterator[ImageFile]:
    """The pictures that lines name: a path each, with a caption behind a tab or without, or an object."""
    for number, line in enumerate(rows, 1):
        where = f"{name}:{number}" if name else f"line {number}"
        if line.lstrip().startswith("{"):
            yield parse_image(_parse_json_object(line, where), folder, where)
        elif line.strip():
            yield ImageFile(folder / line.partition("\t")[0].strip(), None, where)


def _parse_json_object(line: str, where: str) -> dict[str, Any]:
    """The object in a line of JSON."""
    given = parse_json_line(line, where)
    if not isinstance(given, dict):
        raise UserError(f"{where}: not an image with a caption; a line of a .jsonl file is {_JSON_FORMAT}")
    return given


def parse_image(fields: Mapping[str, Any], folder: Path = Path(), where: str = "") -> ImageFile:
    """The picture that an object names."""
    path, row, before = fields.get("image"), fields.get("row"), f"{where}: " if where else ""
    if not isinstance(path, str) or not path:
        raise UserError(f"{before}there is no image; it is {_JSON_FORMAT}")
    if row is not None and not _is_count(row):
        raise UserError(f"{before}row is the number of a picture in its file, from 0, not {short_repr(row)}")
    return ImageFile(folder / path, row, where, _parse_original(fields.get("original"), folder, where))


def _parse_original(fields: Any, folder: Path, where: str) -> ImageFile | None:
    """The image that features are of, where an object says it."""
    if fields is None:
        return None
    if not isinstance(fields, dict):
        before = f"{where}: " if where else ""
        raise UserError(
            f'{before}original is the image that features are of, {{"image": "path"}}, not {short_repr(fields)}'
        )
    return parse_image({"image": fields.get("image"), "row": fields.get("row")}, folder, where)


def parse_image_lines_with_fields(
    rows: Iterable[str], folder: Path, name: str
) -> Iterator[tuple[ImageFile, dict[str, Any]]]:
    """The pictures that lines name, with a caption or without, each with all else that its line says."""
    for number, line in enumerate(rows, 1):
        where, (path, tab, rest) = f"{name}:{number}", line.partition("\t")
        if line.lstrip().startswith("{"):
            given = _parse_json_object(line, where)
            yield parse_image(given, folder, where), {key: given[key] for key in given if key not in ("image", "row")}
        elif line.strip():
            yield ImageFile(folder / path.strip(), None, where), {"caption": rest.split("\t")[0]} if tab else {}


def _parse_grounding(fields: Mapping[str, Any], where: str) -> WordGrounding | None:
    """Which cells each word names, where an object says it."""
    cells, grid = fields.get("cells"), fields.get("grid")
    if cells is None:
        return None
    if not isinstance(grid, list) or len(grid) != 2 or not all(_is_count(side) and side for side in grid):
        raise UserError(f'{where}: cells need a "grid" of [rows, columns] that they are of, not {short_repr(grid)}')
    if not isinstance(cells, dict):
        raise UserError(f'{where}: cells are {{"number of a word": [cell, …]}}, both from 0, not {short_repr(cells)}')
    for word, named in cells.items():
        if not (word.isascii() and word.isdigit() and len(word) < 9):
            raise UserError(f"{where}: cells are of words by their numbers, from 0, not of {short_repr(word)}")
        if not isinstance(named, list) or not all(_is_count(one) and one < grid[0] * grid[1] for one in named):
            raise UserError(
                f"{where}: cells are numbers below {grid[0] * grid[1]}, row by row, not {short_repr(named)}"
            )
    return WordGrounding((grid[0], grid[1]), {int(word): tuple(named) for word, named in cells.items()})


def _is_count(value: object) -> bool:
    """Whether it is a whole number that counts something."""
    return type(value) is int and 0 <= value < 1 << 40


def compute_image_digests(examples: Sequence[CaptionExample]) -> list[str]:
    """The digest of each picture; one that is named several times is read once."""
    known: dict[tuple[Path, int | None], str] = {}
    for one in examples:
        key = one.picture.path, one.picture.row
        if key not in known:
            known[key] = one.picture.compute_image_digest()
    return [known[one.picture.path, one.picture.row] for one in examples]


def group_captions_by_image(examples: Sequence[CaptionExample]) -> dict[ImageFile, list[str]]:
    """Each picture, as it was named first, with all that is said of it."""
    first: dict[str, ImageFile] = {}
    captions: dict[ImageFile, list[str]] = {}
    for digest, one in zip(compute_image_digests(examples), examples, strict=True):
        captions.setdefault(first.setdefault(digest, one.picture), []).append(one.caption)
    return captions
