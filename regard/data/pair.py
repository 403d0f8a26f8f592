"""A sentence and its translation."""

from __future__ import annotations

import re
from typing import NamedTuple

WHITE_SPACE = re.compile(r"[ \t\r\n]+")


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


def one_line(text: str) -> str:
    """Text that may be broken and indented, as it is in XML, as one line: white space becomes single spaces.

    Spaces with a meaning (no-break, thin, ideographic) stay.

    >>> one_line("  two\\n\\t  lines ")
    'two lines'
    """
    if "\n" in text or "  " in text or "\t" in text or "\r" in text:  # most are one line already
        text = WHITE_SPACE.sub(" ", text)
    return text.strip(" ")
