"""Captions of the same image, side by side: the same content is the same image, whatever it is called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.tasks.captioning.files import Example
from regard.tasks.captioning.picture import Picture


def digests(examples: Sequence[Example]) -> list[str]:
    """The digest of each picture; one that is named several times is read once."""
    known: dict[tuple[Path, int | None], str] = {}
    for one in examples:
        key = one.picture.path, one.picture.row
        if key not in known:
            known[key] = one.picture.digest()
    return [known[one.picture.path, one.picture.row] for one in examples]


def grouped(examples: Sequence[Example]) -> dict[Picture, list[str]]:
    """Each picture, as it was named first, with all that is said of it."""
    first: dict[str, Picture] = {}
    said: dict[Picture, list[str]] = {}
    for digest, one in zip(digests(examples), examples, strict=True):
        said.setdefault(first.setdefault(digest, one.picture), []).append(one.caption)
    return said
