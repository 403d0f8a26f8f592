"""Which language a text is in, among those that are served."""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import copy
from functools import cache
from typing import NamedTuple

from babel import Locale, UnknownLocaleError
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from regard.tokenizers.urls import remove_urls

MOST = 3  # guesses
SEEN = 5000  # characters that are enough to tell
READ = 4 * SEEN  # characters of a long text that are searched for addresses to find so many
LETTER, SPACE = re.compile(r"[^\W\d_]"), re.compile(r"\s")
WINDOW = 100_000  # characters that are searched at once: no other thread runs meanwhile


class Guess(NamedTuple):
    """A language, and how sure it is, from 0 to 100."""

    language: str
    confidence: float


NOTHING = Guess("en", 0.0)  # of a text that says nothing


class Detector:
    """Tells the languages apart that it is given; those that it has not learnt it never guesses."""

    def __init__(self, codes: Iterable[str]) -> None:
        given, learnt = sorted(set(codes)), set(map(str, every().labels))
        self.labels = {code: code for code in given if code in learnt}  # what it has learnt -> what that is called here
        for code in given:  # of two that are nearly one it may have learnt the other
            if NEAR.get(code) in learnt:
                self.labels.setdefault(NEAR[code], code)
        self.unknown = [code for code in given if code not in self.labels.values()]
        self.identifier = copy(every())  # which shares what was read: to restrict it changes no more than it refers to
        if self.labels:
            self.identifier.set_languages(list(self.labels))

    def __call__(self, text: str) -> list[Guess]:
        """The best guesses, the best first."""
        if not self.labels or not has_words(text):
            return [NOTHING]
        ranked = self.identifier.rank(_sample(text))
        guesses = [Guess(self.labels[str(label)], round(100 * float(chance), 1)) for label, chance in ranked[:MOST]]
        return [guess for guess in guesses if guess.confidence > 0] or [NOTHING]

    def sure(self, text: str, language: str) -> bool:
        """Whether a text is in a language even if it might be in any other."""
        return self.labels.get(str(every().classify(_sample(text))[0])) == language


@cache
def every() -> LanguageIdentifier:
    """What tells all languages apart that can be told."""
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def has_words(text: str) -> bool:
    """Whether there is anything to translate: a letter, and not in an address alone."""
    return _first_word(text) is not None


def _first_word(text: str) -> int | None:
    """Return where the first part between white space begins that has a letter outside of addresses.

    White space ends every address, so each part can be judged alone.
    """
    position = 0
    while position < len(text):
        letter = LETTER.search(text, position, position + WINDOW)
        if letter is None:
            position += WINDOW
            continue
        start, end = letter.start(), SPACE.search(text, letter.end())
        while start and not text[start - 1].isspace():
            start -= 1
        position = end.start() if end else len(text)
        if any(map(str.isalpha, remove_urls(text[start:position]))):
            return start
    return None


def _sample(text: str) -> str:
    """Return the beginning of a text without its addresses; that of a long text begins with its first word."""
    if len(text) > READ:
        start = _first_word(text) or 0
        text = text[start : start + READ]
    return remove_urls(text)[:SEEN]


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
