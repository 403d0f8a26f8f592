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

from regard.tasks.task import Corpus

Pixels = npt.NDArray[np.uint8]
Reals = npt.NDArray[np.float64]

SPLITS = {"train": 5000, "dev": 300, "test": 600}
SIDE, CELL = 4, 8  # cells to a side of a scene, and pixels to a side of a cell
HELD = 5  # one of so many sets of objects is held out
COLOURS = {
    "red": (215, 40, 40),
    "green": (40, 165, 60),
    "blue": (50, 80, 220),
    "yellow": (235, 205, 40),
    "purple": (150, 60, 190),
}
SHAPES: dict[str, Callable[[Reals, Reals], npt.NDArray[np.bool_]]] = {  # of coordinates from -1 to 1
    "circle": lambda x, y: x**2 + y**2 <= 1,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) <= 1,
    "triangle": lambda x, y: (np.abs(x) <= (y + 1) / 2) & (y <= 0.95),
    "cross": lambda x, y: (np.minimum(np.abs(x), np.abs(y)) <= 0.34) & (np.maximum(np.abs(x), np.abs(y)) <= 1),
}
RADIUS = {"small": 2.5, "large": 3.8}  # pixels
PAPER = 238  # the grey that scenes are drawn on
CHANGES = {
    "model.size": 128,
    "model.embedding": 64,
    "model.annotation": 64,
    "model.channels": 16,
    "model.dropout": 0.0,  # there are more scenes than a model this small could learn by heart
    "model.doubly_stochastic": 0.0,  # most cells are empty, and none of the words is about them
    "model.reward": 0.03,  # hard attention: with 0.3 the noise of the draws is all that is learnt from
    "data.image": SIDE * CELL,
    "data.patch": CELL,
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


class Thing(NamedTuple):
    """An object, and the cell that it is in."""

    colour: str
    shape: str
    size: str
    row: int
    column: int

    def words(self) -> list[str]:
        """What it is called."""
        return ["a", *(["small"] if self.size == "small" else []), self.colour, self.shape]

    @property
    def cell(self) -> int:
        """The number of its cell, row by row."""
        return self.row * SIDE + self.column


def write(folder: Path, seed: int = 1) -> Corpus:
    """Writes `train`, `dev` and `test`: all images of one in an array, and a `.jsonl` file of sentences about them."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    paths = {}
    for name, count in SPLITS.items():
        scenes = [scene(random, name == "train", seed) for _ in range(count)]
        np.save(folder / f"{name}.npy", np.stack([drawn(things, random) for things in scenes]))
        lines = (json.dumps(told(things, f"{name}.npy", row)) + "\n" for row, things in enumerate(scenes))
        paths[name] = folder / f"{name}.jsonl"
        paths[name].write_text("".join(lines), encoding="utf-8")
    return Corpus([paths["train"]], [paths["dev"]], [paths["test"]], CHANGES)


def scene(random: np.random.Generator, training: bool, seed: int) -> list[Thing]:
    """One to three objects from left to right, to train on; or two or three that training never has together."""
    while True:
        count = int(random.integers(1 if training else 2, 4))
        cells = random.choice(SIDE * SIDE, count, replace=False)
        things = sorted((thing(random, int(cell)) for cell in cells), key=lambda one: (one.column, one.row))
        if is_held(things, seed) != training:
            return things


def thing(random: np.random.Generator, cell: int) -> Thing:
    """An object of any kind in a cell."""
    colour, shape, size = (str(random.choice(list(names))) for names in (COLOURS, SHAPES, RADIUS))
    return Thing(colour, shape, size, *divmod(cell, SIDE))


def is_held(things: Sequence[Thing], seed: int) -> bool:
    """Whether objects of these colours and shapes are kept out of training together; one alone never is."""
    kinds = " ".join(sorted(f"{one.colour} {one.shape}" for one in things))
    number = hashlib.blake2b(kinds.encode(), digest_size=8, key=str(seed).encode()).digest()
    return len(things) > 1 and int.from_bytes(number, "little") % HELD == 0


def relation(first: Thing, second: Thing) -> str:
    """How one lies to the next, which is not further left."""
    down = second.row - first.row
    return "above" if down > 0 else "below" if down < 0 else "left of"


def told(things: Sequence[Thing], image: str, row: int) -> dict[str, Any]:
    """A line: the sentence, and for each word that says what an object is, the cell of that object."""
    words: list[str] = []
    cells: dict[str, list[int]] = {}
    for number, one in enumerate(things):
        if number:
            words += relation(things[number - 1], one).split()
        words += one.words()
        cells |= {str(len(words) - back): [one.cell] for back in (2, 1)}
    return {"image": image, "row": row, "caption": " ".join(words), "grid": [SIDE, SIDE], "cells": cells}


def drawn(things: Sequence[Thing], random: np.random.Generator) -> Pixels:
    """The scene in pixels, with some grain; an object does not quite stand in the middle of its cell."""
    image = np.full((SIDE * CELL, SIDE * CELL, 3), PAPER, dtype=np.float64)
    for one in things:
        across, down = random.uniform(-0.4, 0.4, 2) + (CELL - 1) / 2
        y, x = np.mgrid[0:CELL, 0:CELL]
        inside = SHAPES[one.shape]((x - across) / RADIUS[one.size], (y - down) / RADIUS[one.size])
        patch = image[one.row * CELL : (one.row + 1) * CELL, one.column * CELL : (one.column + 1) * CELL]
        patch[inside] = COLOURS[one.colour]
    grain = random.normal(0.0, 6.0, image.shape)
    return np.clip(image + grain, 0, 255).astype(np.uint8)
