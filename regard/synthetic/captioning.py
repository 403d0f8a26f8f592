"""Synthetic captioning corpus: scenes of coloured shapes, a caption of each, and the grid cells that its words name.

A caption names the objects from left to right by colour and shape, and by size if they are small; between two objects
it says how the first is placed relative to the second. Dev and test scenes show combinations of objects that training
scenes never contain.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.synthetic.corpora import CORPUS_WORDS, SyntheticCorpus, write_splits

_Reals = npt.NDArray[np.float64]

GRID_SIDE, CELL_PIXELS = 4, 8  # cells per side of a scene, pixels per side of a cell
_HELD_OUT_INTERVAL = 5  # one in five combinations of objects is held out
COLOURS: dict[str, tuple[int, int, int]] = CORPUS_WORDS["captioning"]["colours"]
_SHAPES: dict[str, Callable[[_Reals, _Reals], npt.NDArray[np.bool_]]] = {  # functions of coordinates from -1 to 1
    "circle": lambda x, y: x**2 + y**2 <= 1,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) <= 1,
    "triangle": lambda x, y: (np.abs(x) <= (y + 1) / 2) & (y <= 0.95),
    "cross": lambda x, y: (np.minimum(np.abs(x), np.abs(y)) <= 0.34) & (np.maximum(np.abs(x), np.abs(y)) <= 1),
}
_RADII = {"small": 2.5, "large": 3.8}  # pixels
BACKGROUND_GREY = 238


class SceneObject(NamedTuple):
    """An object and its grid cell."""

    colour: str
    shape: str
    size: str
    row: int
    column: int


def write_captioning_corpus(folder: Path, seed: int = 1) -> SyntheticCorpus:
    """Write `train`, `dev` and `test`, each as one array of images and a `.jsonl` file of captions."""
    random = np.random.default_rng(seed)

    def make_text(name: str, size: int) -> str:
        scenes = [make_scene(random, name == "train", seed) for _ in range(size)]
        np.save(folder / f"{name}.npy", np.stack([_draw_scene(scene, random) for scene in scenes]))
        lines = (make_caption_line(scene, f"{name}.npy", row) for row, scene in enumerate(scenes))
        return "".join(f"{json.dumps(line)}\n" for line in lines)

    return write_splits(folder, "captioning", ".jsonl", make_text)


def make_scene(random: np.random.Generator, training: bool, seed: int) -> list[SceneObject]:
    """Draw a scene: one to three objects for training, or two or three that never occur together in training."""
    while True:
        count = int(random.integers(1 if training else 2, 4))
        cells = random.choice(GRID_SIDE * GRID_SIDE, count, replace=False)
        objects = sorted((_make_object(random, int(cell)) for cell in cells), key=attrgetter("column", "row"))
        if is_scene_held_out(objects, seed) != training:
            return objects


def _make_object(random: np.random.Generator, cell: int) -> SceneObject:
    """Draw an object for a cell."""
    colour, shape, size = (str(random.choice(list(names))) for names in (COLOURS, _SHAPES, _RADII))
    return SceneObject(colour, shape, size, *divmod(cell, GRID_SIDE))


def is_scene_held_out(objects: Sequence[SceneObject], seed: int) -> bool:
    """Return True if objects of these colours and shapes never occur together in training; a single object may."""
    kinds = " ".join(sorted(f"{thing.colour} {thing.shape}" for thing in objects))
    digest = hashlib.blake2b(kinds.encode(), digest_size=8, key=str(seed).encode()).digest()
    return len(objects) > 1 and int.from_bytes(digest, "little") % _HELD_OUT_INTERVAL == 0


def make_caption_line(objects: Sequence[SceneObject], image: str, row: int) -> dict[str, Any]:
    """Return the JSON object of a scene: the caption, and the cell of the object that each word describes."""
    words: list[str] = []
    cells: dict[str, list[int]] = {}
    for index, thing in enumerate(objects):
        if index:  # the position of the previous object, which is not further right
            down = thing.row - objects[index - 1].row
            words += ["above"] if down > 0 else ["below"] if down < 0 else ["left", "of"]
        words += ["a", *(["small"] if thing.size == "small" else []), thing.colour, thing.shape]
        cells |= {str(len(words) - offset): [thing.row * GRID_SIDE + thing.column] for offset in (2, 1)}
    return {"image": image, "row": row, "caption": " ".join(words), "grid": [GRID_SIDE, GRID_SIDE], "cells": cells}


def _draw_scene(objects: Sequence[SceneObject], random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Return the scene in pixels, with noise; objects are slightly off the centre of their cells."""
    cells = np.full((GRID_SIDE, CELL_PIXELS, GRID_SIDE, CELL_PIXELS, 3), BACKGROUND_GREY, dtype=np.float64)
    for thing in objects:
        center_x, center_y = random.uniform(-0.4, 0.4, 2) + (CELL_PIXELS - 1) / 2
        y, x = np.mgrid[0:CELL_PIXELS, 0:CELL_PIXELS]
        inside = _SHAPES[thing.shape]((x - center_x) / _RADII[thing.size], (y - center_y) / _RADII[thing.size])
        cells[thing.row, :, thing.column][inside] = COLOURS[thing.colour]
    image = cells.reshape(GRID_SIDE * CELL_PIXELS, GRID_SIDE * CELL_PIXELS, 3)
    return np.clip(image + random.normal(0.0, 6.0, image.shape), 0, 255).astype(np.uint8)
