"""Sentence pairs, and word alignments in the Pharaoh format."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_WHITESPACE = re.compile(r"[ \t\r\n]+")


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


def collapse_whitespace(text: str) -> str:
    """Return text that may have line breaks and indentation, as in XML, as one line with single spaces.

    Special spaces (no-break, thin, ideographic) stay.

    >>> collapse_whitespace("  two\\n\\t  lines ")
    'two lines'
    """
    if "\n" in text or "  " in text or "\t" in text or "\r" in text:  # most texts are one line already
        text = _WHITESPACE.sub(" ", text)
    return text.strip(" ")


Link = tuple[int, int]  # indices of a source word and a target word, from 0


def format_pharaoh(links: Iterable[Link]) -> str:
    """Return links in the Pharaoh format, `0-0 1-2`, sorted."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))
