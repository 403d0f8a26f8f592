"""The network that made features of images: which one, up to which layer, and what of an image it was shown.

A file `backbone.yaml` beside the features says it. So the same can be done to other images, and weights be drawn over
the part of an image that they are of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import yaml

from regard.config import parse
from regard.errors import UserError, shown
from regard.recipes import from_yaml
from regard.tasks.captioning.picture import MOST, Array, Picture, pillow

NAME = "backbone.yaml"
Pixels = npt.NDArray[np.uint8]
Precision = Literal["float16", "float32"]


class Window(NamedTuple):
    """The part of an image that is seen, each side as a share of the image's width or height."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """All that it takes to make the same features again."""

    network: str  # as torchvision calls it
    layer: str  # likewise
    weights: str  # torchvision's name for them, a file, or `random`
    checksum: str  # of those weights that the features depend on
    grid: tuple[int, ...]  # rows, columns, features
    side: int  # pixels, after …
    resize: int  # … the shorter side of the image was given so many
    interpolation: Literal["bilinear", "bicubic"]
    mean: tuple[float, ...]  # of each colour, from 0 to 1
    std: tuple[float, ...]
    precision: Precision  # that the features are kept in

    def __post_init__(self) -> None:
        if not 1 <= self.side <= self.resize:
            raise ValueError(f"side is at least 1 and at most resize, {self.resize}, not {self.side}")
        if len(self.grid) != 3 or min(self.grid) < 1:
            raise ValueError(f"grid is rows, columns and features, not {list(self.grid)}")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(self.std):
            raise ValueError("mean and std are of three colours, and std is not 0")

    def described(self) -> str:
        """In a few words."""
        return f"{self.network} {self.layer} ({self.weights}, {self.side} pixels)"

    def mapping(self) -> dict[str, Any]:
        """As YAML has it."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    def write(self, folder: Path) -> None:
        """Puts it down beside the features."""
        written = yaml.safe_dump(self.mapping(), sort_keys=False, allow_unicode=True)
        (folder / NAME).write_text(written, encoding="utf-8")

    def makes_those_of(self, other: Backbone) -> bool:
        """Whether features of both are of one kind, wherever the weights are kept."""
        return replace(self, weights=other.weights) == other

    def framed(self, array: Array, picture: Picture) -> Pixels:
        """Height × width × 3 -> side × side × 3: the middle of the image, its shorter side scaled."""
        height, width = self.scaled(array.shape[0], array.shape[1])
        if height * width > MOST:
            raise picture.wrong(f"{width:,} × {height:,} pixels when scaled; an image has {MOST:,} at the most")
        image = pillow(picture)
        filters = {"bilinear": image.Resampling.BILINEAR, "bicubic": image.Resampling.BICUBIC}
        made = image.fromarray(np.ascontiguousarray(array)).resize((width, height), filters[self.interpolation])
        top, left = (round((length - self.side) / 2) for length in (height, width))
        framed: Pixels = np.array(made.crop((left, top, left + self.side, top + self.side)))
        return framed

    def scaled(self, height: int, width: int) -> tuple[int, int]:
        """The size of an image whose shorter side has as many pixels as it should."""
        shorter = min(height, width)
        return tuple(int(self.resize * length / shorter) for length in (height, width))  # type: ignore[return-value]

    def window(self, height: int, width: int) -> Window:
        """Which part of an image of this size `framed` shows."""
        tall, wide = self.scaled(height, width)
        top, left = (round((length - self.side) / 2) for length in (tall, wide))
        return Window(left / wide, top / tall, (left + self.side) / wide, (top + self.side) / tall)


def beside(path: Path) -> Backbone | None:
    """What made the features that a file names, if a `backbone.yaml` says it."""
    place = path.parent / NAME
    if not place.is_file():
        return None
    try:
        written = place.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{place} is not UTF-8 (byte {error.start + 1})") from error
    found = from_yaml(written, str(place))
    if not isinstance(found, dict):
        raise UserError(f"{place} says which network made features, key by key, not {shown(found)}")
    return parse(Backbone, found, str(place))


def common(paths: Iterable[Path], known: Backbone | None = None, whose: str = "the run") -> Backbone | None:
    """What made the features of all files, as far as they say it; `known` is what made those of `whose`."""
    for path in paths:
        found = beside(path)
        if found and known and not found.makes_those_of(known):
            raise UserError(f"{path}: features of {found.described()}, and those of {whose} are of {known.described()}")
        if found and not known:
            known, whose = found, str(path)
    return known
