"""Scenes of coloured shapes with a sentence about each, and which cells of the scene every word of it names.

Objects are told from left to right, each by its colour and shape, and by its size where it is small; between two of
them stands how the first lies to the second. What a dev or test scene shows was never together in training.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.synthetic.corpus import SyntheticCorpus

_Pixels = npt.NDArray[np.uint8]
_Reals = npt.NDArray[np.float64]

SPLIT_SIZES = {"train": 5000, "dev": 300, "test": 600}
GRID_SIDE, CELL_PIXELS = 4, 8  # cells to a side of a scene, and pixels to a side of a cell
_HELD_OUT_INTERVAL = 5  # one of so many sets of objects is held out
COLOURS = {
    "red": (215, 40, 40),
    "green": (40, 165, 60),
    "blue": (50, 80, 220),
    "yellow": (235, 205, 40),
    "purple": (150, 60, 190),
}
_SHAPES: dict[str, Callable[[_Reals, _Reals], npt.NDArray[np.bool_]]] = {  # of coordinates from -1 to 1
    "circle": lambda x, y: x**2 + y**2 <= 1,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) <= 1,
    "triangle": lambda x, y: (np.abs(x) <= (y + 1) / 2) & (y <= 0.95),
    "cross": lambda x, y: (np.minimum(np.abs(x), np.abs(y)) <= 0.34) & (np.maximum(np.abs(x), np.abs(y)) <= 1),
}
_RADII = {"small": 2.5, "large": 3.8}  # pixels
BACKGROUND_GREY = 238  # the grey that scenes are drawn on
SMALL_MODEL_OVERRIDES = {
    "model.size": 128,
    "model.embedding": 64,
    "model.annotation": 64,
    "model.channels": 16,
    "model.dropout": 0.0,  # there are more scenes than a model this small could learn by heart
    "model.doubly_stochastic": 0.0,  # most cells are empty, and none of the words is about them
    "model.reward": 0.03,  # hard attention: with 0.3 the noise of the draws is all that is learnt from
    "data.image": GRID_SIDE * CELL_PIXELS,
    "data.patch": CELL_PIXELS,
    "text.vocabulary": 100,
    "training.steps": 1600,
    "training.batch_tokens": 1024,
    "training.learning_rate": 0.004,
    "training.schedule": "cosine",
    "training.warmup": 100,
    "training.patience": None,
    "training.validate_every": 200,
    "training.checkpoint_every": 200,
    "training.validate_pairs": 100,
    "training.log_every": 20,
}


class SceneObject(NamedTuple):
    """An object, and the cell that it is in."""

    colour: str
    shape: str
    size: str
    row: int
    column: int

    def list_words(self) -> list[str]:
        """What it is called."""
        return ["a", *(["small"] if self.size == "small" else []), self.colour, self.shape]

    @property
    def cell(self) -> int:
        """The number of its cell, row by row."""
        return self.row * GRID_SIDE + self.column


def write_captioning_corpus(folder: Path, seed: int = 1) -> SyntheticCorpus:
    """Writes `train`, `dev` and `test`: all images of one in an array, and a `.jsonl` file of sentences about them."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    paths = {}
    for name, count in SPLIT_SIZES.items():
        scenes = [make_scene(random, name == "train", seed) for _ in range(count)]
        np.save(folder / f"{name}.npy", np.stack([_draw_scene(things, random) for things in scenes]))
        lines = (json.dumps(make_caption_line(things, f"{name}.npy", row)) + "\n" for row, things in enumerate(scenes))
        paths[name] = folder / f"{name}.jsonl"
        paths[name].write_text("".join(lines), encoding="utf-8")
    return SyntheticCorpus([paths["train"]], [paths["dev"]], [paths["test"]], SMALL_MODEL_OVERRIDES)


def make_scene(random: np.random.Generator, training: bool, seed: int) -> list[SceneObject]:
    """One to three objects from left to right, to train on; or two or three that training never has together."""
    while True:
        count = int(random.integers(1 if training else 2, 4))
        cells = random.choice(GRID_SIDE * GRID_SIDE, count, replace=False)
        things = sorted((_make_object(random, int(cell)) for cell in cells), key=lambda one: (one.column, one.row))
        if is_scene_held_out(things, seed) != training:
            return things


def _make_object(random: np.random.Generator, cell: int) -> SceneObject:
    """An object of any kind in a cell."""
    colour, shape, size = (str(random.choice(list(names))) for names in (COLOURS, _SHAPES, _RADII))
    return SceneObject(colour, shape, size, *divmod(cell, GRID_SIDE))


def is_scene_held_out(objects: Sequence[SceneObject], seed: int) -> bool:
    """Whether objects of these colours and shapes are kept out of training together; one alone never is."""
    kinds = " ".join(sorted(f"{one.colour} {one.shape}" for one in objects))
    number = hashlib.blake2b(kinds.encode(), digest_size=8, key=str(seed).encode()).digest()
    return len(objects) > 1 and int.from_bytes(number, "little") % _HELD_OUT_INTERVAL == 0


def _describe_relation(first: SceneObject, second: SceneObject) -> str:
    """How one lies to the next, which is not further left."""
    down = second.row - first.row
    return "above" if down > 0 else "below" if down < 0 else "left of"


def make_caption_line(objects: Sequence[SceneObject], image: str, row: int) -> dict[str, Any]:
    """A line: the sentence, and for each word that says what an object is, the cell of that object."""
    words: list[str] = []
    cells: dict[str, list[int]] = {}
    for number, one in enumerate(objects):
        if number:
            words += _describe_relation(objects[number - 1], one).split()
        words += one.list_words()
        cells |= {str(len(words) - back): [one.cell] for back in (2, 1)}
    return {"image": image, "row": row, "caption": " ".join(words), "grid": [GRID_SIDE, GRID_SIDE], "cells": cells}


def _draw_scene(objects: Sequence[SceneObject], random: np.random.Generator) -> _Pixels:
    """The scene in pixels, with some grain; an object does not quite stand in the middle of its cell."""
    image = np.full((GRID_SIDE * CELL_PIXELS, GRID_SIDE * CELL_PIXELS, 3), BACKGROUND_GREY, dtype=np.float64)
    for one in objects:
        across, down = random.uniform(-0.4, 0.4, 2) + (CELL_PIXELS - 1) / 2
        y, x = np.mgrid[0:CELL_PIXELS, 0:CELL_PIXELS]
        inside = _SHAPES[one.shape]((x - across) / _RADII[one.size], (y - down) / _RADII[one.size])
        patch = image[
            one.row * CELL_PIXELS : (one.row + 1) * CELL_PIXELS,
            one.column * CELL_PIXELS : (one.column + 1) * CELL_PIXELS,
        ]
        patch[inside] = COLOURS[one.colour]
    grain = random.normal(0.0, 6.0, image.shape)
    return np.clip(image + grain, 0, 255).astype(np.uint8)
