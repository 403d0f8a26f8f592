"""Which language a text is in, among those that are served."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from functools import cache
from typing import NamedTuple

from py3langid.langid import MODEL_FILE, LanguageIdentifier

from regard.serve.languages import NEAR
from regard.text.addresses import worded

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
        ranked = self.identifier.rank(worded(text)[:SEEN])
        guesses = [Guess(self.labels[str(label)], round(100 * float(chance), 1)) for label, chance in ranked[:MOST]]
        return [guess for guess in guesses if guess.confidence > 0] or [NOTHING]

    def sure(self, text: str, language: str) -> bool:
        """Whether a text is in a language even if it might be in any other."""
        return self.labels.get(str(every().classify(worded(text)[:SEEN])[0])) == language


@cache
def every() -> LanguageIdentifier:
    """What tells all languages apart that can be told."""
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def has_words(text: str) -> bool:
    """Whether there is anything to translate: a letter, and not in an address alone."""
    return any(map(str.isalpha, worded(text)))
