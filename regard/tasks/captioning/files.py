"""Files of captions: JSON lines, or a path, a tab and a sentence a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from regard.data.corpus import suffix
from regard.data.files import COMPRESSED, STANDARD_INPUT, lines, lines_of, name_of, reading
from regard.data.formats.jsonl import parsed, unwritable, writable
from regard.data.recognition import first_bytes, form
from regard.errors import UserError, shown
from regard.tasks.captioning.picture import Picture

FORM = '{"image": "path", "caption": "…"}, with "row": n where a .npy file holds many'


class Truth(NamedTuple):
    """Which cells of a grid the words of a caption name: by the number of the word, from 0."""

    grid: tuple[int, int]
    cells: Mapping[int, Sequence[int]] = MappingProxyType({})


class Example(NamedTuple):
    """A picture, a sentence about it, and what its words name, where that is known."""

    picture: Picture
    caption: str
    truth: Truth | None = None


Reader = Callable[[Iterable[str], str, Path], Iterator[Example]]


def read(paths: Sequence[Path]) -> Iterator[Example]:
    """The examples of some files, one behind the other."""
    for path in paths:
        for example in examples(path):
            if not writable(example.caption) or not writable(str(example.picture.path)):
                raise unwritable(example.picture.where)
            yield example


def examples(path: Path) -> Iterator[Example]:
    """Those of one file; paths in it are relative to the folder that it is in."""
    if suffix(path) in READERS:
        return READERS[suffix(path)](lines(path), name_of(path), path.parent)
    if path == STANDARD_INPUT or path.is_fifo():
        return unnamed(path)
    if not path.exists():
        raise UserError(f"there is no file {path}")
    raise UserError(
        f"{path} is not of a kind that holds captions ({', '.join(READERS)}, also {', '.join(COMPRESSED)}; - for "
        "standard input)"
    )


def unnamed(pipe: Path) -> Iterator[Example]:
    """What comes through a pipe, whose first bytes say in which form."""
    with reading(pipe) as file:
        kind = form(first_bytes(file))
        yield from READERS.get(kind, tsv)(lines_of(file, pipe), name_of(pipe), Path())


def tsv(rows: Iterable[str], name: str, folder: Path) -> Iterator[Example]:
    """A path, a tab and a caption in each line; further columns are left alone, and so are blank lines."""
    for number, line in enumerate(rows, 1):
        if line.strip():
            where, (path, tab, rest) = f"{name}:{number}", line.partition("\t")
            if not tab or not path.strip():
                raise UserError(f"{where}: a line is a path, a tab and a caption, not {shown(line)}")
            yield Example(Picture(folder / path.strip(), None, where), rest.split("\t")[0])


def jsonl(rows: Iterable[str], name: str, folder: Path) -> Iterator[Example]:
    """An object in each line."""
    for number, line in enumerate(rows, 1):
        if line.strip():
            where = f"{name}:{number}"
            given = mapping(line, where)
            caption = given.get("caption")
            if not isinstance(caption, str):
                raise UserError(f"{where}: there is no caption; a line of a .jsonl file is {FORM}")
            yield Example(picture(given, folder, where), caption, truth(given, where))


READERS: dict[str, Reader] = {".jsonl": jsonl, ".tsv": tsv}


def pictures(rows: Iterable[str], folder: Path = Path(), name: str = "") -> Iterator[Picture]:
    """The pictures that lines name: a path each, with a caption behind a tab or without, or an object."""
    for number, line in enumerate(rows, 1):
        where = f"{name}:{number}" if name else f"line {number}"
        if line.lstrip().startswith("{"):
            yield picture(mapping(line, where), folder, where)
        elif line.strip():
            yield Picture(folder / line.partition("\t")[0].strip(), None, where)


def mapping(line: str, where: str) -> dict[str, Any]:
    """The object in a line of JSON."""
    given = parsed(line, where)
    if not isinstance(given, dict):
        raise UserError(f"{where}: not an image with a caption; a line of a .jsonl file is {FORM}")
    return given


def picture(given: Mapping[str, Any], folder: Path = Path(), where: str = "") -> Picture:
    """The picture that an object names."""
    path, row, before = given.get("image"), given.get("row"), f"{where}: " if where else ""
    if not isinstance(path, str) or not path:
        raise UserError(f"{before}there is no image; it is {FORM}")
    if row is not None and not is_count(row):
        raise UserError(f"{before}row is the number of a picture in its file, from 0, not {shown(row)}")
    return Picture(folder / path, row, where, original(given.get("original"), folder, where))


def original(given: Any, folder: Path, where: str) -> Picture | None:
    """The image that features are of, where an object says it."""
    if given is None:
        return None
    if not isinstance(given, dict):
        before = f"{where}: " if where else ""
        raise UserError(f'{before}original is the image that features are of, {{"image": "path"}}, not {shown(given)}')
    return picture({"image": given.get("image"), "row": given.get("row")}, folder, where)


def named(rows: Iterable[str], folder: Path, name: str) -> Iterator[tuple[Picture, dict[str, Any]]]:
    """The pictures that lines name, with a caption or without, each with all else that its line says."""
    for number, line in enumerate(rows, 1):
        where, (path, tab, rest) = f"{name}:{number}", line.partition("\t")
        if line.lstrip().startswith("{"):
            given = mapping(line, where)
            yield picture(given, folder, where), {key: given[key] for key in given if key not in ("image", "row")}
        elif line.strip():
            yield Picture(folder / path.strip(), None, where), {"caption": rest.split("\t")[0]} if tab else {}


def truth(given: Mapping[str, Any], where: str) -> Truth | None:
    """Which cells each word names, where an object says it."""
    cells, grid = given.get("cells"), given.get("grid")
    if cells is None:
        return None
    if not isinstance(grid, list) or len(grid) != 2 or not all(is_count(side) and side for side in grid):
        raise UserError(f'{where}: cells need a "grid" of [rows, columns] that they are of, not {shown(grid)}')
    if not isinstance(cells, dict):
        raise UserError(f'{where}: cells are {{"number of a word": [cell, …]}}, both from 0, not {shown(cells)}')
    for word, named in cells.items():
        if not (word.isascii() and word.isdigit() and len(word) < 9):
            raise UserError(f"{where}: cells are of words by their numbers, from 0, not of {shown(word)}")
        if not isinstance(named, list) or not all(is_count(one) and one < grid[0] * grid[1] for one in named):
            raise UserError(f"{where}: cells are numbers below {grid[0] * grid[1]}, row by row, not {shown(named)}")
    return Truth((grid[0], grid[1]), {int(word): tuple(named) for word, named in cells.items()})


def is_count(value: object) -> bool:
    """Whether it is a whole number that counts something."""
    return type(value) is int and 0 <= value < 1 << 40
