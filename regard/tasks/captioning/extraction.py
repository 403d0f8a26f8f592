"""Features of all images that files of captions name: each image is seen once, by a network that does not change.

Of `train.jsonl` become `train.npy`, a grid a row, and `train.jsonl`, whose lines name these rows and the images that
they are of; and one `backbone.yaml` says what made them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.data.files import COMPRESSED, STANDARD_INPUT, lines, name_of
from regard.errors import UserError
from regard.tasks.captioning.backbone import Backbone, Pixels
from regard.tasks.captioning.files import named
from regard.tasks.captioning.network import Network
from regard.tasks.captioning.picture import ARRAY, IMAGES, Picture, is_image

THREADS = min(8, os.cpu_count() or 1)  # that read images

Show = Callable[[int], None]  # is told how many more images are done


class Listed(NamedTuple):
    """A file of captions: what it will be called, its images, each once, and its lines with the number of an image."""

    name: str
    images: list[Picture]
    lines: list[tuple[int, dict[str, Any]]]


def listed(paths: Sequence[Path]) -> list[Listed]:
    """What files of captions name; every image is there, and looks like one from the outside."""
    found = [one(path) for path in paths]
    names = [file.name for file in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two of the files would both become {name}.jsonl: {' and '.join(map(str, paths))}")
    return found


def one(path: Path) -> Listed:
    """What one file names."""
    if path.suffix.lower() in (ARRAY, *IMAGES):
        raise UserError(f"{path} is a picture; a file is wanted that names pictures, one a line, or - for such a pipe")
    numbers: dict[tuple[Path, int | None], int] = {}
    images: list[Picture] = []
    rows = []
    for picture, rest in named(lines(path), path.parent, name_of(path)):
        key = picture.path, picture.row
        if key not in numbers:
            numbers[key] = len(images)
            images.append(checked(picture))
        rows.append((numbers[key], rest))
    if not images:
        raise UserError(f"{name_of(path)}: no image is named in there")
    return Listed(stem(path), images, rows)


def stem(path: Path) -> str:
    """The name of a file without its endings."""
    if path == STANDARD_INPUT:
        return "captions"
    return Path(path.stem).stem if path.suffix.lower() in COMPRESSED else path.stem


def checked(picture: Picture) -> Picture:
    """The same, if it is an image."""
    shape, kind = picture.header()
    if not is_image(shape, kind):
        raise picture.wrong(f"{' × '.join(map(str, shape))} numbers of the kind {kind} are no image")
    return picture


def room(files: Sequence[Listed], backbone: Backbone) -> int:
    """Bytes that the features take."""
    return sum(len(file.images) for file in files) * int(np.prod(backbone.grid)) * np.dtype(backbone.precision).itemsize


def extract(files: Sequence[Listed], network: Network, out: Path, batch: int, show: Show = lambda _: None) -> None:
    """Writes the features of all images into a new folder, which is there when it is whole."""
    with whole(out, room(files, network.backbone)) as folder:
        for file in files:
            put(file, network, folder / f"{file.name}{ARRAY}", batch, show)
            told = (json.dumps(line, ensure_ascii=False) + "\n" for line in told_of(file, out))
            (folder / f"{file.name}.jsonl").write_text("".join(told), encoding="utf-8")
        network.backbone.write(folder)


@contextmanager
def whole(out: Path, needed: int) -> Iterator[Path]:
    """A folder beside, which takes its name when everything is in it; what fails leaves nothing behind."""
    refuse(out)
    beside = out.with_name(f".{out.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        free = shutil.disk_usage(beside).free
        if needed > free:  # or the system would end the process in the midst of it: that is what maps do
            raise UserError(
                f"{out}: the features take {needed / 1e6:,.1f} MB, and the disk has {free / 1e6:,.1f} MB left"
            )
        yield beside
        beside.rename(out)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def refuse(out: Path) -> None:
    """Nothing is written over."""
    if out.exists():
        raise UserError(f"{out} is there already; choose another --out")


def put(file: Listed, network: Network, path: Path, batch: int, show: Show) -> None:
    """The features of a file's images, row by row; the disk holds them, not the memory."""
    backbone = network.backbone
    shape = (len(file.images), *backbone.grid)
    table = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(backbone.precision), shape=shape)
    with ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, len(file.images), batch):
            some = file.images[start : start + batch]
            grids = network.grids(np.stack(list(pool.map(lambda picture: framed(picture, backbone), some))))
            finite(grids, some, backbone)
            table[start : start + len(some)] = grids
            show(len(some))
    table.flush()


def framed(picture: Picture, backbone: Backbone) -> Pixels:
    """What the network is shown of an image."""
    return backbone.framed(picture.load(), picture)


def finite(grids: Any, pictures: Sequence[Picture], backbone: Backbone) -> None:
    """Refuses features that are no numbers, or too large for what they are kept in."""
    for grid, picture in zip(grids, pictures, strict=True):
        if not np.isfinite(grid).all():
            help_ = ": --precision float32" if backbone.precision == "float16" else ""
            raise picture.wrong(f"it has features that {backbone.precision} cannot hold{help_}")


def told_of(file: Listed, out: Path) -> Iterator[dict[str, Any]]:
    """The lines, which name rows of the array, and the images by their way from the folder."""
    for number, rest in file.lines:
        picture = file.images[number]
        row = {} if picture.row is None else {"row": picture.row}
        original = {"image": os.path.relpath(picture.path.absolute(), out.absolute())} | row
        yield {"image": f"{file.name}{ARRAY}", "row": number} | rest | {"original": original}
