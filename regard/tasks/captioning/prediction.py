"""A caption, and where the model looked for each of its words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from regard.plot import Line, Overlay
from regard.search import Floats
from regard.tasks.captioning.backbone import Pixels, Window
from regard.tasks.captioning.eye import Eye
from regard.tasks.captioning.picture import Picture


class Caption(NamedTuple):
    """A sentence about a picture."""

    picture: Picture
    text: str
    score: float  # what the search ranked it by
    tokens: Sequence[str]  # with the one that ends a sentence
    attention: Floats  # tokens × rows × columns
    pixels: Pixels | None  # the image as the model saw it, if it was one
    window: Window | None = None  # the part of the image that this is, if it is not all of it
    eye: Eye | None = None  # through which the picture was seen

    def line(self) -> str:
        """The sentence."""
        return self.text

    def document(self) -> dict[str, Any]:
        """The sentence, its tokens, and a grid of weights for each."""
        named = {"image": str(self.picture.path)} | ({} if self.picture.row is None else {"row": self.picture.row})
        said = {"caption": self.text, "score": self.score, "tokens": list(self.tokens)}
        seen = {} if self.window is None else {"seen": list(self.window)}
        return named | said | seen | {"grid": list(self.attention.shape[1:]), "weights": self.attention.tolist()}

    def looks(self) -> list[Line]:
        """A line for each token: the places, by row and column from 1, with their weights."""
        rows, columns = self.attention.shape[1:]
        names = [f"{row + 1},{column + 1}" for row, column in np.ndindex(rows, columns)]
        weights = self.attention.reshape(len(self.tokens), -1)
        both = zip(self.tokens, weights, strict=True)
        return [Line(token, names, row.tolist(), darkest=float(row.max())) for token, row in both]

    def overlay(self) -> Overlay | None:
        """The weights of each token over the image, also over that which features are of."""
        pixels = self.pixels
        if pixels is None and self.eye is not None:
            pixels = self.eye.original(self.picture)
        return Overlay(pixels, self.tokens, self.attention)
