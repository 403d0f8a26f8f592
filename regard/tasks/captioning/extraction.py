"""Extract image features once with a frozen network, for `regard data features`.

From `train.jsonl` it writes `train.npy`, one feature grid a row, and a new `train.jsonl` whose lines name these rows
and the original images. One `backbone.yaml` describes the network.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.data.readers.text import DECOMPRESSORS, STANDARD_INPUT, format_path, iterate_lines
from regard.errors import UserError
from regard.paths import create_folder_atomically
from regard.tasks.captioning.backbone import Backbone
from regard.tasks.captioning.feature_extractor import FeatureExtractor
from regard.tasks.captioning.image_files import (
    ARRAY_SUFFIX,
    KNOWN_SUFFIXES,
    ImageFile,
    is_image_array,
    parse_image_lines_with_fields,
)

_READER_THREADS = min(8, os.cpu_count() or 1)

_OnProgress = Callable[[int], None]  # called with the number of images just finished


class CaptionFile(NamedTuple):
    """A caption file to convert: output name, distinct images, and lines as (index of the image, other fields)."""

    name: str
    images: list[ImageFile]
    lines: list[tuple[int, dict[str, Any]]]


def list_caption_files(paths: Sequence[Path]) -> list[CaptionFile]:
    """Read caption files and check that all images exist and that the output names differ."""
    files = [_list_caption_file(path) for path in paths]
    names = [file.name for file in files]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two of the files would both become {name}.jsonl: {' and '.join(map(str, paths))}")
    return files


def _list_caption_file(path: Path) -> CaptionFile:
    if path.suffix.lower() in KNOWN_SUFFIXES:
        raise UserError(f"{path} is an image; give a file that names images, one a line, or - for standard input")
    image_indices: dict[tuple[Path, int | None], int] = {}
    images: list[ImageFile] = []
    lines = []
    for picture, fields in parse_image_lines_with_fields(iterate_lines(path), path.parent, format_path(path)):
        if picture.key not in image_indices:
            image_indices[picture.key] = len(images)
            images.append(_check_image(picture))
        lines.append((image_indices[picture.key], fields))
    if not images:
        raise UserError(f"{format_path(path)} does not name any image")
    return CaptionFile(_remove_suffixes(path), images, lines)


def _remove_suffixes(path: Path) -> str:
    if path == STANDARD_INPUT:
        return "captions"
    return Path(path.stem).stem if path.suffix.lower() in DECOMPRESSORS else path.stem


def _check_image(picture: ImageFile) -> ImageFile:
    """Return the image; raise UserError if the file holds something else."""
    shape, dtype = picture.read_shape_and_dtype()
    if not is_image_array(shape, dtype):
        raise picture.make_error(f"an array of {' × '.join(map(str, shape))} {dtype} is not an image")
    return picture


def count_feature_bytes(files: Sequence[CaptionFile], backbone: Backbone) -> int:
    """Return the disk space that the features take, in bytes."""
    return sum(len(file.images) for file in files) * int(np.prod(backbone.grid)) * np.dtype(backbone.precision).itemsize


def extract_image_features(
    files: Sequence[CaptionFile],
    extractor: FeatureExtractor,
    out: Path,
    batch_size: int,
    on_progress: _OnProgress = lambda _: None,
) -> None:
    """Write the features of all images into a new folder, which appears when it is complete."""
    check_output_is_new(out)
    with create_folder_atomically(out) as folder:
        _check_free_space(folder, count_feature_bytes(files, extractor.backbone), out)
        for file in files:
            _write_feature_array(file, extractor, folder / f"{file.name}{ARRAY_SUFFIX}", batch_size, on_progress)
            output_lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in _iterate_output_lines(file, out))
            (folder / f"{file.name}.jsonl").write_text("".join(output_lines), encoding="utf-8")
        extractor.backbone.write(folder)


def _check_free_space(folder: Path, needed_bytes: int, out: Path) -> None:
    """Raise UserError if the disk is too full: writing to a memory map would kill the process (SIGBUS)."""
    free = shutil.disk_usage(folder).free
    if needed_bytes > free:
        raise UserError(
            f"{out}: the features take {needed_bytes / 1e6:,.1f} MB, but the disk has {free / 1e6:,.1f} MB left"
        )


def check_output_is_new(out: Path) -> None:
    """Raise UserError if the output exists."""
    if out.exists():
        raise UserError(f"{out} already exists; choose another --out")


def _write_feature_array(
    file: CaptionFile, extractor: FeatureExtractor, path: Path, batch_size: int, on_progress: _OnProgress
) -> None:
    """Write the features of a file's images into a memory-mapped array, batch by batch."""
    backbone = extractor.backbone
    shape = (len(file.images), *backbone.grid)
    table = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(backbone.precision), shape=shape)
    with ThreadPoolExecutor(_READER_THREADS) as pool:
        for start in range(0, len(file.images), batch_size):
            batch = file.images[start : start + batch_size]
            frames = pool.map(lambda picture: backbone.resize_and_crop(picture.load(), picture), batch)
            grids = extractor.extract_grids(np.stack(list(frames)))
            _check_finite_features(grids, batch, backbone)
            table[start : start + len(batch)] = grids
            on_progress(len(batch))
    table.flush()


def _check_finite_features(grids: Any, pictures: Sequence[ImageFile], backbone: Backbone) -> None:
    """Raise UserError for features that are NaN or inf in the chosen precision."""
    for grid, picture in zip(grids, pictures, strict=True):
        if not np.isfinite(grid).all():
            hint = "; try --precision float32" if backbone.precision == "float16" else ""
            raise picture.make_error(f"it has features that are NaN or inf in {backbone.precision}{hint}")


def _iterate_output_lines(file: CaptionFile, out: Path) -> Iterator[dict[str, Any]]:
    """Yield the output lines; each names a row of the array, and the original image relative to `out`."""
    for index, fields in file.lines:
        picture = file.images[index]
        row = {} if picture.row is None else {"row": picture.row}
        original = {"image": os.path.relpath(picture.path.absolute(), out.absolute())} | row
        yield {"image": f"{file.name}{ARRAY_SUFFIX}", "row": index} | fields | {"original": original}
