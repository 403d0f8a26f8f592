"""Corpus filters: rules that reject bad sentence pairs (length, length ratio, script, duplicates, …)."""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import chain, islice
from typing import Any, NamedTuple

from regard.data.languages import find_main_script, find_script
from regard.data.readers.text import Pair
from regard.errors import UserError, format_suggestion
from regard.tokenizers.segmentation import UNSPACED_CHARACTERS, has_unspaced_script

# Scripts without spaces between words: one or two Chinese characters count as a word, or up to four others, about as
# many as the words of an English translation. Punctuation does not count.
_WIDE_MARKS = re.compile("[\u3001-\u3003\u3008-\u3011\u3014-\u301f\u30fb\uff01-\uff0f\uff1a-\uff1f\uff5b-\uff65]+")
_CHINESE = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED_WORD = re.compile(f"[{_CHINESE}]{{1,2}}|[{UNSPACED_CHARACTERS}]{{1,4}}")


@lru_cache(maxsize=8)  # several rules in turn count the words of one pair
def count_words(text: str) -> int:
    """Count the words between white space; in scripts without spaces, estimate their number.

    >>> count_words("a small house"), count_words("一座小房子")
    (3, 3)
    """
    if has_unspaced_script(text):
        text = _UNSPACED_WORD.sub(" _ ", _WIDE_MARKS.sub(" ", text))
    return len(text.split())


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
_RUN_OF_LETTERS = re.compile(rf"[^\W\d_{UNSPACED_CHARACTERS}]+|[{UNSPACED_CHARACTERS}]+")


class PairFilter(NamedTuple):
    """A rule that rejects sentence pairs; it may remember the pairs that it has seen."""

    name: str  # one word, for the command line and reports
    rejects: Callable[[Pair], bool]


def _has_unequal_lengths(pair: Pair, max_ratio: float = 3.0) -> bool:
    """Return True if the longer side exceeds `max_ratio` times the shorter one by more than three words."""
    short, long = sorted(map(count_words, pair))
    return long > max_ratio * short + _RATIO_EXTRA_WORDS


def _is_copied(pair: Pair) -> bool:
    """Return True if the target equals the source, apart from case and white space."""
    source, target = ("".join(text.split()).casefold() for text in pair)
    return source == target


def _has_empty_side(pair: Pair) -> bool:
    return not all(map(str.strip, pair))


def _has_control_characters(pair: Pair) -> bool:
    """Return True for control characters and the remains of a wrong encoding (U+FFFD)."""
    return any(map(_CONTROL_CHARACTERS.search, pair))


def _is_too_short(pair: Pair, min_words: int = 1) -> bool:
    return min(map(count_words, pair)) < min_words


def _is_too_long(pair: Pair, max_words: int = 200) -> bool:
    return max(map(count_words, pair)) > max_words


def _has_few_letters(pair: Pair, min_fraction: float = 0.5) -> bool:
    """Return True if a side is numbers, marks or addresses rather than a sentence; white space is not counted."""
    return min(map(compute_letter_fraction, pair)) < min_fraction


def _is_in_wrong_script(pair: Pair, source: str | None = None, target: str | None = None) -> bool:
    """Return True if a side is mostly written in another script than expected; None accepts any script."""
    return any(map(_is_in_other_script, pair, (source, target), pair[::-1]))


def _is_repeated_pair(pair: Pair, seen: TextHashSet) -> bool:
    return not seen.add_text(*pair)


def _has_repeated_source(pair: Pair, seen: TextHashSet) -> bool:
    return not seen.add_text(pair.source)


# In the order in which the rules are applied: cheap ones first, those with memory last.
_RULES: dict[str, Callable[..., bool]] = {
    "empty": _has_empty_side,
    "broken": _has_control_characters,
    "short": _is_too_short,
    "long": _is_too_long,
    "ratio": _has_unequal_lengths,
    "copied": _is_copied,
    "letters": _has_few_letters,
    "script": _is_in_wrong_script,
    "duplicate": _is_repeated_pair,
    "same-source": _has_repeated_source,
}
_RULES_WITH_MEMORY = ("duplicate", "same-source")


def make_filter(name: str, **limits: Any) -> PairFilter:
    """Return the rule of a name, with its limits: `make_filter("ratio", max_ratio=2.0)`.

    Limits are `min_words` of `short`, `max_words` of `long`, `max_ratio` of `ratio`, `min_fraction` of `letters`, and
    `source` and `target` of `script`.
    """
    if name not in _RULES:
        raise UserError(f"there is no rule {name!r}{format_suggestion(name, _RULES)}")
    memory = {"seen": TextHashSet()} if name in _RULES_WITH_MEMORY else {}
    return PairFilter(name, partial(_RULES[name], **limits, **memory))


def make_default_filters(
    scripts: tuple[str | None, str | None],
    *,
    min_words: int = 1,
    max_words: int = 200,
    max_ratio: float = 3.0,
    min_letters: float = 0.5,
    unique_source: bool = False,
) -> list[PairFilter]:
    """Return the rules in the order in which they are applied, without `same-source` unless `unique_source`."""
    if min_words > max_words:
        raise UserError(f"no pair has at least {min_words} words and at most {max_words}")
    limits: dict[str, dict[str, Any]] = {
        "short": {"min_words": min_words},
        "long": {"max_words": max_words},
        "ratio": {"max_ratio": max_ratio},
        "letters": {"min_fraction": min_letters},
        "script": {"source": scripts[0], "target": scripts[1]},
    }
    return [make_filter(name, **limits.get(name, {})) for name in _RULES if name != "same-source" or unique_source]


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


def compute_letter_fraction(text: str) -> float:
    """Return the fraction of letters and their combining marks among all characters except white space."""
    characters = "".join(text.split())
    others = [other for other in _NON_LETTER.findall(characters) if not unicodedata.category(other).startswith("M")]
    return 1 - len(others) / len(characters) if characters else 0.0


def _is_in_other_script(text: str, expected_script: str | None, other_side: str) -> bool:
    """Return True if most letters of a text are in another script than expected; None accepts any script.

    Words that both sides have, such as names, count only if there is no letter of the expected script.
    """
    if expected_script is None or (expected_script == "latin" and text.isascii()):
        return False
    scripts = [name for name in map(find_script, text) if name is not None]
    expected = scripts.count(expected_script)
    if not 0 < 2 * expected < len(scripts):
        return bool(scripts) and not expected
    shared = set(_RUN_OF_LETTERS.findall(other_side))
    own = [word for word in _RUN_OF_LETTERS.findall(text) if word not in shared]
    scripts = [name for name in map(find_script, "".join(own)) if name is not None]
    return 2 * expected < len(scripts)


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
