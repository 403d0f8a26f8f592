"""Addresses of pages and of mail, and markers of placeholders, which mean the same in every language."""

from __future__ import annotations

import html
import re

# Letters of scripts that put no space between words end an address; so do brackets, quotes and the entities for them.
_UNSPACED_LETTERS = r"\u3000-\u9fff\uac00-\ud7af\uff00-\uffef"
_URL_DELIMITERS = rf"\s<>\"“”„«»(){_UNSPACED_LETTERS}"
_URL_CHARACTER = rf"(?:[^&{_URL_DELIMITERS}]|&(?!(?:lt|gt|quot|nbsp|#\d+|#x[\da-f]+);))"
_URL_BRACKETS = rf"\([^{_URL_DELIMITERS}]*\)"
_LAST_URL_CHARACTER = rf"(?:&amp;|{_URL_BRACKETS}|[^&{_URL_DELIMITERS}\[\]{{}}.,;:!?'’‘…*|])"
_WEB_URL = rf"(?:[a-z][a-z\d+.-]{{1,20}}://|www\.)(?:{_URL_CHARACTER}|{_URL_BRACKETS})*{_LAST_URL_CHARACTER}"
_EMAIL_ADDRESS = rf"(?:mailto:)?(?:[^\W{_UNSPACED_LETTERS}]|[.%+-])+@(?:[^\W_{_UNSPACED_LETTERS}][^\W{_UNSPACED_LETTERS}]*(?:-+[^\W{_UNSPACED_LETTERS}]+)*\.)+[a-z]{{2,}}(?![\w@-])"
_PLACEHOLDER = r"\[X\d+X\]"  # what Weblate has put in the place of a placeholder when it asks
URL_OR_PLACEHOLDER = re.compile(
    rf"(?<![^\W{_UNSPACED_LETTERS}])(?<![.%+@/-])(?:{_EMAIL_ADDRESS}|{_WEB_URL})|{_PLACEHOLDER}", re.IGNORECASE
)


def remove_urls(text: str) -> str:
    """A text without its addresses."""
    return URL_OR_PLACEHOLDER.sub("", text)


_NUMERIC_REFERENCE = re.compile(r"&#(?=[0-9])0*+([0-9]*+)")
_MAX_DIGITS = 8  # a number that long, without zeros before it, is beyond Unicode


def unescape_html(text: str) -> str:
    """Do what `html.unescape` does, and also read numbers with thousands of digits, which `int` refuses: U+FFFD."""
    return html.unescape(_NUMERIC_REFERENCE.sub(lambda found: f"&#{found[1][:_MAX_DIGITS] or '0'}", text))
