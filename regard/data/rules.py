"""Rules by which pairs are left out: one class each, with the name by which a person switches it off."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from regard.data.lengths import words
from regard.data.pair import Pair
from regard.data.scripts import script, usual
from regard.data.seen import Seen
from regard.errors import UserError, nearest

SHORT = 3  # words that the longer side may have over the ratio: "Danke" is "Thank you very much"
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd\ufffe\uffff]")
NO_LETTER = re.compile(r"[\W\d_]")


class Rule(Protocol):
    """Says which pairs to leave out."""

    @property
    def name(self) -> str:
        """One word, for the command line and reports."""

    def drops(self, pair: Pair) -> bool:
        """Whether a pair is to be left out; a rule may remember those that it was asked about."""


@dataclass(frozen=True)
class Empty:
    """A side without text."""

    name: str = "empty"

    def drops(self, pair: Pair) -> bool:
        """Whether one side is white space alone."""
        return not pair.source.strip() or not pair.target.strip()


@dataclass(frozen=True)
class Broken:
    """Control characters, and those that a wrong encoding leaves behind (U+FFFD)."""

    name: str = "broken"

    def drops(self, pair: Pair) -> bool:
        """Whether there is one on either side."""
        return CONTROL.search(pair.source) is not None or CONTROL.search(pair.target) is not None


@dataclass(frozen=True)
class Short:
    """Fewer words than `least` on a side."""

    least: int = 1
    name: str = "short"

    def drops(self, pair: Pair) -> bool:
        """Whether the shorter side is too short."""
        return min(words(pair.source), words(pair.target)) < self.least


@dataclass(frozen=True)
class Long:
    """More words than `most` on a side."""

    most: int = 200
    name: str = "long"

    def drops(self, pair: Pair) -> bool:
        """Whether the longer side is too long."""
        return max(words(pair.source), words(pair.target)) > self.most


@dataclass(frozen=True)
class Ratio:
    """One side more than `most` times as long as the other, and three words more than that."""

    most: float = 3.0
    name: str = "ratio"

    def drops(self, pair: Pair) -> bool:
        """Whether the lengths do not go together."""
        short, long = sorted((words(pair.source), words(pair.target)))
        return long > self.most * short + SHORT


@dataclass(frozen=True)
class Copied:
    """A target that is its source, letters' case and white space apart."""

    name: str = "copied"

    def drops(self, pair: Pair) -> bool:
        """Whether nothing was translated."""
        return bare(pair.source) == bare(pair.target)


@dataclass(frozen=True)
class Letters:
    """A side of which fewer than the share `least` of all characters are letters, white space not counted."""

    least: float = 0.5
    name: str = "letters"

    def drops(self, pair: Pair) -> bool:
        """Whether a side is numbers, marks or addresses rather than a sentence."""
        return letters(pair.source) < self.least or letters(pair.target) < self.least


@dataclass(frozen=True)
class Script:
    """A side most of whose letters are in another script than the side's own; None: any script will do."""

    source: str | None
    target: str | None
    name: str = "script"

    def drops(self, pair: Pair) -> bool:
        """Whether a side is not written as it should be."""
        return foreign(pair.source, self.source) or foreign(pair.target, self.target)


@dataclass(frozen=True)
class Duplicate:
    """A pair that came before."""

    name: str = "duplicate"
    seen: Seen = field(default_factory=Seen, repr=False)

    def drops(self, pair: Pair) -> bool:
        """Whether this very pair was asked about before."""
        return not self.seen.add(pair.source, pair.target)


@dataclass(frozen=True)
class SameSource:
    """A source that came before, whatever its translation."""

    name: str = "same-source"
    seen: Seen = field(default_factory=Seen, repr=False)

    def drops(self, pair: Pair) -> bool:
        """Whether the source was asked about before."""
        return not self.seen.add(pair.source)


def standard(
    scripts: tuple[str | None, str | None],
    *,
    min_words: int = 1,
    max_words: int = 200,
    max_ratio: float = 3.0,
    min_letters: float = 0.5,
    unique_source: bool = False,
) -> list[Rule]:
    """The rules in the order in which they are asked, the cheap ones first, those that remember last."""
    if min_words > max_words:
        raise UserError(f"no pair has at least {min_words} words and at most {max_words}")
    rules: list[Rule] = [Empty(), Broken(), Short(min_words), Long(max_words), Ratio(max_ratio), Copied()]
    rules += [Letters(min_letters), Script(*scripts), Duplicate()]
    return [*rules, SameSource()] if unique_source else rules


def without(rules: Sequence[Rule], names: Iterable[str]) -> list[Rule]:
    """All rules but those named."""
    known = {rule.name for rule in rules}
    for name in names:
        if name not in known:
            raise UserError(f"there is no rule {name!r}{nearest(name, known)}")
    return [rule for rule in rules if rule.name not in set(names)]


def usual_scripts(pairs: Iterable[Pair]) -> tuple[str | None, str | None]:
    """The script of each side, None where it mixes several."""
    source, target = Counter[str](), Counter[str]()
    for pair in pairs:
        source.update(pair.source)
        target.update(pair.target)
    return usual(source), usual(target)


def bare(text: str) -> str:
    """Text without white space and without a difference between small and capital letters."""
    return "".join(text.split()).casefold()


def letters(text: str) -> float:
    """The share of letters, and of the marks above and below them, among all that is not white space."""
    ink = "".join(text.split())
    others = sum(not unicodedata.category(character).startswith("M") for character in NO_LETTER.findall(ink))
    return 1 - others / len(ink) if ink else 0.0


def foreign(text: str, own: str | None) -> bool:
    """Whether most letters of a text are in another script than its own."""
    if own is None or (own == "latin" and text.isascii()):
        return False
    found = [name for name in map(script, text) if name is not None]
    return 2 * found.count(own) < len(found)
