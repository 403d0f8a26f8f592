"""Match the halves of tag pairs in markup."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

VOID_ELEMENTS = frozenset(  # of HTML
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr")
)
NO_TRANSLATE_ATTRIBUTE = re.compile(  # in a tag: its element stays as it is
    r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*(?:"[^"]*|'[^']*)\bnotranslate\b""", re.IGNORECASE
)


class TagHalf(NamedTuple):
    """One element of markup as a possible half of a pair; an element without a key is not one."""

    key: str  # equal for both halves of a pair
    opens: bool
    closes: bool


def match_tag_pairs(elements: Iterable[TagHalf], max_depth: float = math.inf) -> dict[int, int]:
    """Return the index of the other half for each half of a pair.

    An element that can close the innermost open pair of its key does so; pairs that are still open inside it have no
    other half. Pairs that are nested more than `max_depth` deep are not opened.
    """
    partners: dict[int, int] = {}
    opened: list[tuple[int, str]] = []
    num_opened: dict[str, int] = {}  # of each key
    for index, (key, opens, closes) in enumerate(elements):
        if closes and num_opened.get(key):
            start, start_key = opened.pop()
            num_opened[start_key] -= 1
            while start_key != key:
                start, start_key = opened.pop()
                num_opened[start_key] -= 1
            partners[start], partners[index] = index, start
        elif opens and key and len(opened) < max_depth:
            opened.append((index, key))
            num_opened[key] = num_opened.get(key, 0) + 1
    return partners
