"""URLs, placeholder markers, HTML entities and tag pairs: patterns of what a text contains besides words.

`regard.translate.protected_spans` copies URLs and placeholders through a translation."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

# A URL ends at letters of scripts without spaces between words, and at brackets, quotes and their HTML entities.
_UNSPACED_LETTERS = r"\u3000-\u9fff\uac00-\ud7af\uff00-\uffef"
_URL_DELIMITERS = rf"\s<>\"“”„«»(){_UNSPACED_LETTERS}"
_URL_CHARACTER = rf"(?:[^&{_URL_DELIMITERS}]|&(?!(?:lt|gt|quot|nbsp|#\d+|#x[\da-f]+);))"
_URL_BRACKETS = rf"\([^{_URL_DELIMITERS}]*\)"
_LAST_URL_CHARACTER = rf"(?:&amp;|{_URL_BRACKETS}|[^&{_URL_DELIMITERS}\[\]{{}}.,;:!?'’‘…*|])"
_WEB_URL = rf"(?:[a-z][a-z\d+.-]{{1,20}}://|www\.)(?:{_URL_CHARACTER}|{_URL_BRACKETS})*{_LAST_URL_CHARACTER}"
_EMAIL_ADDRESS = (
    rf"(?:mailto:)?(?:[^\W{_UNSPACED_LETTERS}]|[.%+-])+@"
    rf"(?:[^\W_{_UNSPACED_LETTERS}][^\W{_UNSPACED_LETTERS}]*(?:-+[^\W{_UNSPACED_LETTERS}]+)*\.)+"
    r"[a-z]{2,}(?![\w@-])"
)
_PLACEHOLDER = r"\[X\d+X\]"  # Weblate's replacement of placeholders in text that it sends
URL_OR_PLACEHOLDER = re.compile(
    rf"(?<![^\W{_UNSPACED_LETTERS}])(?<![.%+@/-])(?:{_EMAIL_ADDRESS}|{_WEB_URL})|{_PLACEHOLDER}", re.IGNORECASE
)


def remove_urls(text: str) -> str:
    """Return a text without its URLs, e-mail addresses and placeholders."""
    return URL_OR_PLACEHOLDER.sub("", text)


_NUMERIC_REFERENCE = re.compile(r"&#(?=[0-9])0*+([0-9]*+)")
_MAX_DIGITS = 8  # without leading zeros, so long a number is beyond Unicode


def unescape_html(text: str) -> str:
    """Return `html.unescape(text)`; numbers with thousands of digits, which `int` refuses, become U+FFFD as well."""
    return html.unescape(_NUMERIC_REFERENCE.sub(lambda match: f"&#{match[1][:_MAX_DIGITS] or '0'}", text))


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
