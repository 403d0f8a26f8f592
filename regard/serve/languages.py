"""What languages are called: by codes in requests, by names for people."""

from __future__ import annotations

from babel import Locale, UnknownLocaleError

# What programs say -> what is spoken of in here, and back: the same language has been called by both.
SPOKEN = {"pt-br": "pb", "zh-hans": "zh", "zh-hant": "zt"}
WRITTEN = {"pb": "pt-BR", "zh": "zh-Hans", "zt": "zh-Hant"}
NEAR = {"pt": "pb", "pb": "pt", "zh": "zt", "zt": "zh"}  # a detector may know the one, and the other be served
AUTO = "auto"


def code(given: str) -> str:
    """A code as it is known in here: lower case, one for each language."""
    lower = given.strip().lower().replace("_", "-")
    return SPOKEN.get(lower, lower)


def written(known: str) -> str:
    """A code as answers have it."""
    return WRITTEN.get(known, known)


def name(known: str) -> str:
    """The English name of a language; a code that nobody knows is its own."""
    try:
        found = Locale.parse(written(known), sep="-").get_display_name("en")
    except (UnknownLocaleError, ValueError):
        return known
    return found or known
