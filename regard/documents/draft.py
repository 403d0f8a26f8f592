"""A document that waits for its translations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Draft(NamedTuple):
    """The texts of a document, and what writes it once all of them are translated.

    An empty translation leaves its text in the document as it is.
    """

    texts: list[str]
    write: Callable[[Sequence[str]], bytes]
    languages: tuple[str, str] = ("", "")  # source and target, where the document states them
