"""Corpus filters: rules that reject bad sentence pairs (length, length ratio, script, duplicates, …)."""

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

# Scripts without spaces between words. Each Chinese character or kana counts as a word; a word of Thai, Lao, Burmese or
# Khmer has about four characters.
_UNSPACED_CHARACTERS = re.compile(
    "[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
    "|[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]{1,4}"
)


@lru_cache(maxsize=8)  # several rules in turn count the words of one pair
def count_words(text: str) -> int:
    """Count the words between white space; in scripts without spaces, estimate their number.

    >>> count_words("a small house"), count_words("一座小房子")
    (3, 5)
    """
    return len(text.split()) if text.isascii() else len(_UNSPACED_CHARACTERS.sub(" _ ", text).split())


class TextHashSet:
    """A set of texts that stores 8 bytes of each text's hash, at most 16 with free slots.

    A Python set takes ten times as much. With ten million texts the probability that any two have the same hash is
    3 in a million.
    """

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 << 10))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add_text(self, *texts: str) -> bool:
        """Add a text, or two as one; return True if it is new."""
        return self.add_hash(hash_text(*texts))

    def add_hash(self, hash_value: int) -> bool:
        """Add a text by its hash; return True if it is new."""
        if 4 * self._count >= 3 * len(self._slots):
            self._grow()
        slot = self._find_slot(hash_value)
        if self._slots[slot]:
            return False
        self._slots[slot] = hash_value
        self._count += 1
        return True

    def _find_slot(self, hash_value: int) -> int:
        """Return the slot that holds a hash, or the free slot where it belongs."""
        mask = len(self._slots) - 1  # sizes are powers of two
        slot = hash_value & mask
        while (stored := self._slots[slot]) and stored != hash_value:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        """Double the number of slots."""
        old_slots = self._slots
        self._slots = array("Q", bytes(16 * len(old_slots)))
        for hash_value in old_slots:
            if hash_value:
                self._slots[self._find_slot(hash_value)] = hash_value


def hash_text(*texts: str) -> int:
    """Return a 64-bit hash of a text, or of two, never 0; where the first one ends matters."""
    joined = f"{len(texts[0])} {''.join(texts)}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(joined, digest_size=8).digest(), "big") or 1


_RATIO_EXTRA_WORDS = 3  # that the longer side may have beyond the ratio: "Danke" is "Thank you very much"
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd\ufffe\uffff]")
_NON_LETTER = re.compile(r"[\W\d_]")


class PairFilter(Protocol):
    """Interface of a rule that rejects sentence pairs."""

    @property
    def name(self) -> str:
        """One word, for the command line and reports."""

    def rejects(self, pair: Pair) -> bool:
        """Return True if a pair is to be removed; a rule may remember the pairs that it has seen."""


@dataclass(frozen=True)
class EmptySideFilter:
    """Reject pairs with an empty side."""

    name: str = "empty"

    def rejects(self, pair: Pair) -> bool:
        """Return True if a side is empty or white space."""
        return not pair.source.strip() or not pair.target.strip()


@dataclass(frozen=True)
class ControlCharacterFilter:
    """Reject pairs with control characters or the remains of a wrong encoding (U+FFFD)."""

    name: str = "broken"

    def rejects(self, pair: Pair) -> bool:
        """Return True if either side contains such a character."""
        return (
            _CONTROL_CHARACTERS.search(pair.source) is not None or _CONTROL_CHARACTERS.search(pair.target) is not None
        )


@dataclass(frozen=True)
class MinWordsFilter:
    """Reject pairs with fewer than `min_words` words on a side."""

    min_words: int = 1
    name: str = "short"

    def rejects(self, pair: Pair) -> bool:
        """Return True if the shorter side is too short."""
        return min(count_words(pair.source), count_words(pair.target)) < self.min_words


@dataclass(frozen=True)
class MaxWordsFilter:
    """Reject pairs with more than `max_words` words on a side."""

    max_words: int = 200
    name: str = "long"

    def rejects(self, pair: Pair) -> bool:
        """Return True if the longer side is too long."""
        return max(count_words(pair.source), count_words(pair.target)) > self.max_words


@dataclass(frozen=True)
class LengthRatioFilter:
    """Reject pairs whose longer side exceeds `max_ratio` times the shorter one by more than three words."""

    max_ratio: float = 3.0
    name: str = "ratio"

    def rejects(self, pair: Pair) -> bool:
        """Return True if the lengths differ too much."""
        short, long = sorted((count_words(pair.source), count_words(pair.target)))
        return long > self.max_ratio * short + _RATIO_EXTRA_WORDS


@dataclass(frozen=True)
class CopiedSourceFilter:
    """Reject pairs whose target equals the source, apart from case and white space."""

    name: str = "copied"

    def rejects(self, pair: Pair) -> bool:
        """Return True if the target is a copy of the source."""
        return _normalize_for_comparison(pair.source) == _normalize_for_comparison(pair.target)


@dataclass(frozen=True)
class LetterFractionFilter:
    """Reject pairs with a side whose fraction of letters (white space not counted) is below `min_fraction`."""

    min_fraction: float = 0.5
    name: str = "letters"

    def rejects(self, pair: Pair) -> bool:
        """Return True if a side is numbers, marks or addresses rather than a sentence."""
        return (
            compute_letter_fraction(pair.source) < self.min_fraction
            or compute_letter_fraction(pair.target) < self.min_fraction
        )


@dataclass(frozen=True)
class ScriptFilter:
    """Reject pairs with a side mostly written in another script than expected; None accepts any script."""

    source: str | None
    target: str | None
    name: str = "script"

    def rejects(self, pair: Pair) -> bool:
        """Return True if a side is mostly in another script."""
        return _is_in_other_script(pair.source, self.source) or _is_in_other_script(pair.target, self.target)


@dataclass(frozen=True)
class DuplicatePairFilter:
    """Reject pairs that occurred before."""

    name: str = "duplicate"
    seen: TextHashSet = field(default_factory=TextHashSet, repr=False)

    def rejects(self, pair: Pair) -> bool:
        """Return True if the same pair was seen before."""
        return not self.seen.add_text(pair.source, pair.target)


@dataclass(frozen=True)
class DuplicateSourceFilter:
    """Reject pairs whose source occurred before, with any translation."""

    name: str = "same-source"
    seen: TextHashSet = field(default_factory=TextHashSet, repr=False)

    def rejects(self, pair: Pair) -> bool:
        """Return True if the same source was seen before."""
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
    """Return the rules in the order in which they are applied: cheap ones first, those with memory last."""
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
    """Return all rules except those named."""
    known = {rule.name for rule in filters}
    for name in names:
        if name not in known:
            raise UserError(f"there is no rule {name!r}{format_suggestion(name, known)}")
    return [rule for rule in filters if rule.name not in set(names)]


def find_main_scripts(pairs: Iterable[Pair]) -> tuple[str | None, str | None]:
    """Return the main script of each side, or None if it mixes several."""
    source, target = Counter[str](), Counter[str]()
    for pair in pairs:
        source.update(pair.source)
        target.update(pair.target)
    return find_main_script(source), find_main_script(target)


def _normalize_for_comparison(text: str) -> str:
    """Return text in case-folded form without white space."""
    return "".join(text.split()).casefold()


def compute_letter_fraction(text: str) -> float:
    """Return the fraction of letters and their combining marks among all characters except white space."""
    characters = "".join(text.split())
    num_others = sum(
        not unicodedata.category(character).startswith("M") for character in _NON_LETTER.findall(characters)
    )
    return 1 - num_others / len(characters) if characters else 0.0


def _is_in_other_script(text: str, expected_script: str | None) -> bool:
    """Return True if most letters of a text are in another script than expected."""
    if expected_script is None or (expected_script == "latin" and text.isascii()):
        return False
    scripts = [name for name in map(find_script, text) if name is not None]
    return 2 * scripts.count(expected_script) < len(scripts)


_NUM_PEEKED_PAIRS = 10_000  # by which each side's main script is detected


class FilterPipeline:
    """Apply rules to pairs, and count rejected pairs by the first rule that rejected them."""

    def __init__(self, filters: Sequence[PairFilter]) -> None:
        self.filters = filters
        self.num_read = 0
        self.num_accepted = 0
        self.num_rejected = {rule.name: 0 for rule in filters}

    def accepts(self, pair: Pair) -> bool:
        """Return True if no rule rejects the pair."""
        self.num_read += 1
        for rule in self.filters:
            if rule.rejects(pair):
                self.num_rejected[rule.name] += 1
                return False
        self.num_accepted += 1
        return True

    def to_dict(self) -> dict[str, int | dict[str, int]]:
        """Return the counts."""
        return {"read": self.num_read, "kept": self.num_accepted, "dropped": dict(self.num_rejected)}


def peek_pairs(pairs: Iterable[Pair]) -> tuple[list[Pair], Iterator[Pair]]:
    """Return the first pairs, by which scripts are detected, and an iterator over all pairs."""
    iterator = iter(pairs)
    first = list(islice(iterator, _NUM_PEEKED_PAIRS))
    return first, chain(first, iterator)
