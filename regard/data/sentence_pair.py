"""A sentence and its translation."""

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
    """Text that may be broken and indented, as it is in XML, as one line: white space becomes single spaces.

    Spaces with a meaning (no-break, thin, ideographic) stay.

    >>> one_line("  two\\n\\t  lines ")
    'two lines'
    """
    if "\n" in text or "  " in text or "\t" in text or "\r" in text:  # most are one line already
        text = _WHITESPACE.sub(" ", text)
    return text.strip(" ")


Link = tuple[int, int]  # source word, target word, from 0


def format_pharaoh(links: Iterable[Link]) -> str:
    """Links as `0-0 1-2`, in order."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))
