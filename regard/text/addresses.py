"""Addresses of pages and of mail, and markers of placeholders, which mean the same in every language."""

from __future__ import annotations

import re

# Letters of scripts that put no space between words end an address; so do brackets, quotes and the entities for them.
DENSE = r"\u3000-\u9fff\uac00-\ud7af\uff00-\uffef"
STRANGE = rf"\s<>\"“”„«»(){DENSE}"
LETTER = rf"(?:[^&{STRANGE}]|&(?!(?:lt|gt|quot|nbsp|#\d+|#x[\da-f]+);))"
BRACKETS = rf"\([^{STRANGE}]*\)"
LAST = rf"(?:&amp;|{BRACKETS}|[^&{STRANGE}\[\]{{}}.,;:!?'’‘…*|])"
PAGE = rf"(?:[a-z][a-z\d+.-]{{1,20}}://|www\.)(?:{LETTER}|{BRACKETS})*{LAST}"
MAIL = (
    rf"(?:mailto:)?(?:[^\W{DENSE}]|[.%+-])+@(?:[^\W_{DENSE}][^\W{DENSE}]*(?:-+[^\W{DENSE}]+)*\.)+[a-z]{{2,}}(?![\w@-])"
)
MARKER = r"\[X\d+X\]"  # what Weblate has put in the place of a placeholder when it asks
ADDRESS = re.compile(rf"(?<![^\W{DENSE}])(?<![.%+@/-])(?:{MAIL}|{PAGE})|{MARKER}", re.IGNORECASE)


def worded(text: str) -> str:
    """A text without its addresses."""
    return ADDRESS.sub("", text)
