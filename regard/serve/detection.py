"""Which language a text is in, among those that are served."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from py3langid.langid import MODEL_FILE, LanguageIdentifier

MOST = 3  # guesses
SEEN = 5000  # characters that are enough to tell


class Guess(NamedTuple):
    """A language, and how sure it is, from 0 to 100."""

    language: str
    confidence: float


NOTHING = Guess("en", 0.0)  # of a text that says nothing


class Detector:
    """Tells the languages apart that it is given; those that it has not learnt it never guesses."""

    def __init__(self, codes: Iterable[str]) -> None:
        self.identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        self.codes = sorted(set(codes) & known())
        if self.codes:
            self.identifier.set_languages(self.codes)

    def __call__(self, text: str) -> list[Guess]:
        """The best guesses, the best first."""
        if not self.codes or not has_words(text):
            return [NOTHING]
        ranked = self.identifier.rank(text[:SEEN])
        guesses = [Guess(str(code), round(100 * float(chance), 1)) for code, chance in ranked[:MOST]]
        return [guess for guess in guesses if guess.confidence > 0] or [NOTHING]


@cache
def known() -> frozenset[str]:
    """The languages that can be told apart."""
    return frozenset(map(str, LanguageIdentifier.from_model_file(MODEL_FILE).labels))


def has_words(text: str) -> bool:
    """Whether there is anything to translate: a letter or a digit."""
    return any(map(str.isalnum, text))
