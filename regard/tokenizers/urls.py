"""URLs, e-mail addresses and placeholder markers: their patterns, and HTML entities.

`regard.translate.protected_spans` copies them through a translation.
"""

from __future__ import annotations

import html
import re

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
