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

from regard.data.readers.text_io import DECOMPRESSORS, STANDARD_INPUT, format_path, iterate_lines
from regard.errors import UserError
from regard.tasks.captioning.backbone import Backbone, Pixels
from regard.tasks.captioning.caption_files import parse_image_lines_with_fields
from regard.tasks.captioning.feature_extractor import FeatureExtractor
from regard.tasks.captioning.images import ARRAY_SUFFIX, IMAGE_SUFFIXES, ImageFile, is_image_array

_READER_THREADS = min(8, os.cpu_count() or 1)  # that read images

_OnProgress = Callable[[int], None]  # is told how many more images are done


class CaptionFile(NamedTuple):
    """A file of captions: what it will be called, its images, each once, and its lines with the number of an image."""

    name: str
    images: list[ImageFile]
    lines: list[tuple[int, dict[str, Any]]]


def list_caption_files(paths: Sequence[Path]) -> list[CaptionFile]:
    """What files of captions name; every image is there, and looks like one from the outside."""
    found = [_list_caption_file(path) for path in paths]
    names = [file.name for file in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two of the files would both become {name}.jsonl: {' and '.join(map(str, paths))}")
    return found


def _list_caption_file(path: Path) -> CaptionFile:
    """What one file names."""
    if path.suffix.lower() in (ARRAY_SUFFIX, *IMAGE_SUFFIXES):
        raise UserError(f"{path} is a picture; a file is wanted that names pictures, one a line, or - for such a pipe")
    numbers: dict[tuple[Path, int | None], int] = {}
    images: list[ImageFile] = []
    rows = []
    for picture, rest in parse_image_lines_with_fields(iterate_lines(path), path.parent, format_path(path)):
        key = picture.path, picture.row
        if key not in numbers:
            numbers[key] = len(images)
            images.append(_check_image(picture))
        rows.append((numbers[key], rest))
    if not images:
        raise UserError(f"{format_path(path)}: no image is named in there")
    return CaptionFile(_remove_suffixes(path), images, rows)


def _remove_suffixes(path: Path) -> str:
    """The name of a file without its endings."""
    if path == STANDARD_INPUT:
        return "captions"
    return Path(path.stem).stem if path.suffix.lower() in DECOMPRESSORS else path.stem


def _check_image(picture: ImageFile) -> ImageFile:
    """The same, if it is an image."""
    shape, kind = picture.read_shape_and_dtype()
    if not is_image_array(shape, kind):
        raise picture.make_error(f"{' × '.join(map(str, shape))} numbers of the kind {kind} are no image")
    return picture


def count_feature_bytes(files: Sequence[CaptionFile], backbone: Backbone) -> int:
    """Bytes that the features take."""
    return sum(len(file.images) for file in files) * int(np.prod(backbone.grid)) * np.dtype(backbone.precision).itemsize


def extract_image_features(
    files: Sequence[CaptionFile],
    extractor: FeatureExtractor,
    out: Path,
    batch_size: int,
    on_progress: _OnProgress = lambda _: None,
) -> None:
    """Writes the features of all images into a new folder, which is there when it is whole."""
    with _create_folder_atomically(out, count_feature_bytes(files, extractor.backbone)) as folder:
        for file in files:
            _write_feature_array(file, extractor, folder / f"{file.name}{ARRAY_SUFFIX}", batch_size, on_progress)
            output_lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in _iterate_output_lines(file, out))
            (folder / f"{file.name}.jsonl").write_text("".join(output_lines), encoding="utf-8")
        extractor.backbone.write(folder)


@contextmanager
def _create_folder_atomically(out: Path, needed_bytes: int) -> Iterator[Path]:
    """A folder beside, which takes its name when everything is in it; what fails leaves nothing behind."""
    check_output_is_new(out)
    partial_folder = out.with_name(f".{out.name}.part")
    shutil.rmtree(partial_folder, ignore_errors=True)
    partial_folder.mkdir(parents=True)
    try:
        free = shutil.disk_usage(partial_folder).free
        if needed_bytes > free:  # or the system would end the process in the midst of it: that is what maps do
            raise UserError(
                f"{out}: the features take {needed_bytes / 1e6:,.1f} MB, and the disk has {free / 1e6:,.1f} MB left"
            )
        yield partial_folder
        partial_folder.rename(out)
    except BaseException:
        shutil.rmtree(partial_folder, ignore_errors=True)
        raise


def check_output_is_new(out: Path) -> None:
    """Nothing is written over."""
    if out.exists():
        raise UserError(f"{out} is there already; choose another --out")


def _write_feature_array(
    file: CaptionFile, extractor: FeatureExtractor, path: Path, batch_size: int, on_progress: _OnProgress
) -> None:
    """The features of a file's images, row by row; the disk holds them, not the memory."""
    backbone = extractor.backbone
    shape = (len(file.images), *backbone.grid)
    table = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(backbone.precision), shape=shape)
    with ThreadPoolExecutor(_READER_THREADS) as pool:
        for start in range(0, len(file.images), batch_size):
            some = file.images[start : start + batch_size]
            grids = extractor.extract_grids(
                np.stack(list(pool.map(lambda picture: _load_cropped_image(picture, backbone), some)))
            )
            _check_finite_features(grids, some, backbone)
            table[start : start + len(some)] = grids
            on_progress(len(some))
    table.flush()


def _load_cropped_image(picture: ImageFile, backbone: Backbone) -> Pixels:
    """What the network is shown of an image."""
    return backbone.resize_and_crop(picture.load(), picture)


def _check_finite_features(grids: Any, pictures: Sequence[ImageFile], backbone: Backbone) -> None:
    """Refuses features that are no numbers, or too large for what they are kept in."""
    for grid, picture in zip(grids, pictures, strict=True):
        if not np.isfinite(grid).all():
            help_ = ": --precision float32" if backbone.precision == "float16" else ""
            raise picture.make_error(f"it has features that {backbone.precision} cannot hold{help_}")


def _iterate_output_lines(file: CaptionFile, out: Path) -> Iterator[dict[str, Any]]:
    """The lines, which name rows of the array, and the images by their way from the folder."""
    for number, rest in file.lines:
        picture = file.images[number]
        row = {} if picture.row is None else {"row": picture.row}
        original = {"image": os.path.relpath(picture.path.absolute(), out.absolute())} | row
        yield {"image": f"{file.name}{ARRAY_SUFFIX}", "row": number} | rest | {"original": original}
