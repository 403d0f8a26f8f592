"""Text spelt as the Hansards with gold alignments are, so that a model that is to align them has seen their words.

There each word and mark stands alone, elided and contracted words are written out (« l'ordre du jour » is « le ordre de
le jour »), and an English "n't" is "not".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

TITLES = "Mr Mrs Ms Dr St Hon hon No M MM Mme".replace(" ", "|")
NUMBER, TITLE, INITIALS = r"\.?\d(?:[\d.,]*\d)?\w*", rf"(?:{TITLES})\.(?=\s)", r"(?:[a-z]\.){2,}"
MARK = re.compile("|".join((NUMBER, TITLE, INITIALS, r"\.{2,}", r"-{2,}", r"aujourd'", r"\w+", r"'s\b", r"\S")))
ELIDED = re.compile(r"\b([ldnsjcmt]|qu|jusqu|lorsqu|puisqu|quoiqu)'(?=\w)", re.IGNORECASE)
CONTRACTED = re.compile(r"\b(du|des|au|aux)\b(?! ?-)", re.IGNORECASE)
WHOLE = {"du": "de le", "des": "de les", "au": "à le", "aux": "à les"}
NOT = re.compile(r"\b(ca|wo|sha|\w+)n't\b", re.IGNORECASE)
VERBS = {"ca": "cannot", "wo": "will not", "sha": "shall not"}
SHORT = re.compile(r"\b(\w+)'(m|re|ve|ll|d)\b", re.IGNORECASE)
LONG = {"m": "am", "re": "are", "ve": "have", "ll": "will", "d": "would"}


def french(text: str) -> str:
    """« C'est l'ordre du jour. » -> « Ce est le ordre de le jour . »"""
    text = ELIDED.sub(lambda found: f"{found[1]}e ", straight(text))
    return apart(CONTRACTED.sub(kept_large(WHOLE), text))


def english(text: str) -> str:
    """ "I don't, Mr. Speaker." -> "I do not , Mr. Speaker ." """
    text = NOT.sub(lambda found: VERBS.get(found[1].lower(), f"{found[1]} not"), straight(text))
    return apart(SHORT.sub(lambda found: f"{found[1]} {LONG[found[2].lower()]}", text))


def straight(text: str) -> str:
    """With typewriters' apostrophes."""
    return text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")


def apart(text: str) -> str:
    """Words, numbers and marks with a space between them."""
    return " ".join(MARK.findall(text))


def kept_large(words: Mapping[str, str]) -> Callable[[re.Match[str]], str]:
    """What stands for a word, with a capital where it has one."""

    def written(found: re.Match[str]) -> str:
        whole = words[found[0].lower()]
        return whole[0].upper() + whole[1:] if found[0][0].isupper() else whole

    return written
