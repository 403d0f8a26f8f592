"""How long a sentence is."""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, islice
from typing import Protocol

from regard.data.sentence_pair import Pair
from regard.data.unicode_scripts import find_main_script, find_script
from regard.errors import UserError, format_suggestion

# Scripts that put no spaces between words. Chinese characters and kana count one by one; a word of Thai, Lao, Burmese
# or Khmer has about four.
_UNSPACED_CHARACTERS = re.compile(
    "[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
    "|[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]{1,4}"
)


@lru_cache(maxsize=8)  # several rules ask about one pair in turn
def count_words(text: str) -> int:
    """Words between white space; in scripts that write no spaces, about as many as there would be.

    >>> words("a small house"), words("一座小房子")
    (3, 5)
    """
    return len(text.split()) if text.isascii() else len(_UNSPACED_CHARACTERS.sub(" _ ", text).split())


class TextHashSet:
    """A set of texts that keeps 8 bytes of each one's hash, at most 16 with the room to grow.

    Python's own would take ten times as much. Of ten million texts one is taken for another with a chance of 3 in a
    million.
    """

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 << 10))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add_text(self, *texts: str) -> bool:
        """Adds a text, or two as one; whether it is new."""
        return self.add_hash(hash_text(*texts))

    def add_hash(self, hash_value: int) -> bool:
        """Adds a text by its hash; whether it is new."""
        if 4 * self._count >= 3 * len(self._slots):
            self._grow()
        place = self._find_slot(hash_value)
        if self._slots[place]:
            return False
        self._slots[place] = hash_value
        self._count += 1
        return True

    def _find_slot(self, hash_value: int) -> int:
        """The slot that holds a hash, or the free one where it belongs."""
        last = len(self._slots) - 1  # sizes are powers of two
        place = hash_value & last
        while (found := self._slots[place]) and found != hash_value:
            place = (place + 1) & last
        return place

    def _grow(self) -> None:
        """Twice as many slots."""
        before = self._slots
        self._slots = array("Q", bytes(16 * len(before)))
        for one in before:
            if one:
                self._slots[self._find_slot(one)] = one


def hash_text(*texts: str) -> int:
    """64 bits of a text, or of two, never 0; where the first of them ends counts."""
    joined = f"{len(texts[0])} {''.join(texts)}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(joined, digest_size=8).digest(), "big") or 1


_RATIO_EXTRA_WORDS = 3  # words that the longer side may have over the ratio: "Danke" is "Thank you very much"
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd\ufffe\uffff]")
_NON_LETTER = re.compile(r"[\W\d_]")


class PairFilter(Protocol):
    """Says which pairs to leave out."""

    @property
    def name(self) -> str:
        """One word, for the command line and reports."""

    def rejects(self, pair: Pair) -> bool:
        """Whether a pair is to be left out; a rule may remember those that it was asked about."""


@dataclass(frozen=True)
class EmptySideFilter:
    """A side without text."""

    name: str = "empty"

    def rejects(self, pair: Pair) -> bool:
        """Whether one side is white space alone."""
        return not pair.source.strip() or not pair.target.strip()


@dataclass(frozen=True)
class ControlCharacterFilter:
    """Control characters, and those that a wrong encoding leaves behind (U+FFFD)."""

    name: str = "broken"

    def rejects(self, pair: Pair) -> bool:
        """Whether there is one on either side."""
        return (
            _CONTROL_CHARACTERS.search(pair.source) is not None or _CONTROL_CHARACTERS.search(pair.target) is not None
        )


@dataclass(frozen=True)
class MinWordsFilter:
    """Fewer words than `least` on a side."""

    min_words: int = 1
    name: str = "short"

    def rejects(self, pair: Pair) -> bool:
        """Whether the shorter side is too short."""
        return min(count_words(pair.source), count_words(pair.target)) < self.min_words


@dataclass(frozen=True)
class MaxWordsFilter:
    """More words than `most` on a side."""

    max_words: int = 200
    name: str = "long"

    def rejects(self, pair: Pair) -> bool:
        """Whether the longer side is too long."""
        return max(count_words(pair.source), count_words(pair.target)) > self.max_words


@dataclass(frozen=True)
class LengthRatioFilter:
    """One side more than `most` times as long as the other, and three words more than that."""

    max_ratio: float = 3.0
    name: str = "ratio"

    def rejects(self, pair: Pair) -> bool:
        """Whether the lengths do not go together."""
        short, long = sorted((count_words(pair.source), count_words(pair.target)))
        return long > self.max_ratio * short + _RATIO_EXTRA_WORDS


@dataclass(frozen=True)
class CopiedSourceFilter:
    """A target that is its source, letters' case and white space apart."""

    name: str = "copied"

    def rejects(self, pair: Pair) -> bool:
        """Whether nothing was translated."""
        return _normalize_for_comparison(pair.source) == _normalize_for_comparison(pair.target)


@dataclass(frozen=True)
class LetterFractionFilter:
    """A side of which fewer than the share `least` of all characters are letters, white space not counted."""

    min_fraction: float = 0.5
    name: str = "letters"

    def rejects(self, pair: Pair) -> bool:
        """Whether a side is numbers, marks or addresses rather than a sentence."""
        return (
            compute_letter_fraction(pair.source) < self.min_fraction
            or compute_letter_fraction(pair.target) < self.min_fraction
        )


@dataclass(frozen=True)
class ScriptFilter:
    """A side most of whose letters are in another script than the side's own; None: any script will do."""

    source: str | None
    target: str | None
    name: str = "script"

    def rejects(self, pair: Pair) -> bool:
        """Whether a side is not written as it should be."""
        return _is_in_other_script(pair.source, self.source) or _is_in_other_script(pair.target, self.target)


@dataclass(frozen=True)
class DuplicatePairFilter:
    """A pair that came before."""

    name: str = "duplicate"
    seen: TextHashSet = field(default_factory=TextHashSet, repr=False)

    def rejects(self, pair: Pair) -> bool:
        """Whether this very pair was asked about before."""
        return not self.seen.add_text(pair.source, pair.target)


@dataclass(frozen=True)
class DuplicateSourceFilter:
    """A source that came before, whatever its translation."""

    name: str = "same-source"
    seen: TextHashSet = field(default_factory=TextHashSet, repr=False)

    def rejects(self, pair: Pair) -> bool:
        """Whether the source was asked about before."""
        return not self.seen.add_text(pair.source)


def make_default_filters(
    scripts: tuple[str | None, str | None],
    *,
    min_words: int = 1,
    max_words: int = 200,
    max_ratio: float = 3.0,
    min_letters: float = 0.5,
    unique_source: bool = False,
) -> list[PairFilter]:
    """The rules in the order in which they are asked, the cheap ones first, those that remember last."""
    if min_words > max_words:
        raise UserError(f"no pair has at least {min_words} words and at most {max_words}")
    rules: list[PairFilter] = [
        EmptySideFilter(),
        ControlCharacterFilter(),
        MinWordsFilter(min_words),
        MaxWordsFilter(max_words),
        LengthRatioFilter(max_ratio),
        CopiedSourceFilter(),
    ]
    rules += [LetterFractionFilter(min_letters), ScriptFilter(*scripts), DuplicatePairFilter()]
    return [*rules, DuplicateSourceFilter()] if unique_source else rules


def exclude_filters(filters: Sequence[PairFilter], names: Iterable[str]) -> list[PairFilter]:
    """All rules but those named."""
    known = {rule.name for rule in filters}
    for name in names:
        if name not in known:
            raise UserError(f"there is no rule {name!r}{format_suggestion(name, known)}")
    return [rule for rule in filters if rule.name not in set(names)]


def find_main_scripts(pairs: Iterable[Pair]) -> tuple[str | None, str | None]:
    """The script of each side, None where it mixes several."""
    source, target = Counter[str](), Counter[str]()
    for pair in pairs:
        source.update(pair.source)
        target.update(pair.target)
    return find_main_script(source), find_main_script(target)


def _normalize_for_comparison(text: str) -> str:
    """Text without white space and without a difference between small and capital letters."""
    return "".join(text.split()).casefold()


def compute_letter_fraction(text: str) -> float:
    """The share of letters, and of the marks above and below them, among all that is not white space."""
    ink = "".join(text.split())
    others = sum(not unicodedata.category(character).startswith("M") for character in _NON_LETTER.findall(ink))
    return 1 - others / len(ink) if ink else 0.0


def _is_in_other_script(text: str, expected_script: str | None) -> bool:
    """Whether most letters of a text are in another script than its own."""
    if expected_script is None or (expected_script == "latin" and text.isascii()):
        return False
    found = [name for name in map(find_script, text) if name is not None]
    return 2 * found.count(expected_script) < len(found)


_NUM_PEEKED_PAIRS = 10_000  # pairs by which each side's usual script is known


class FilterPipeline:
    """Lets pairs through that no rule drops, and counts the others by the first rule that did."""

    def __init__(self, filters: Sequence[PairFilter]) -> None:
        self.filters = filters
        self.num_read = 0
        self.num_accepted = 0
        self.num_rejected = {rule.name: 0 for rule in filters}

    def accepts(self, pair: Pair) -> bool:
        """Whether a pair passes."""
        self.num_read += 1
        for rule in self.filters:
            if rule.rejects(pair):
                self.num_rejected[rule.name] += 1
                return False
        self.num_accepted += 1
        return True

    def to_dict(self) -> dict[str, int | dict[str, int]]:
        """The counts."""
        return {"read": self.num_read, "kept": self.num_accepted, "dropped": dict(self.num_rejected)}


def peek_pairs(pairs: Iterable[Pair]) -> tuple[list[Pair], Iterator[Pair]]:
    """The first pairs to learn from, and all of them."""
    rest = iter(pairs)
    first = list(islice(rest, _NUM_PEEKED_PAIRS))
    return first, chain(first, rest)
