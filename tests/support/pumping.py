"""Hostile strings for a regular expression: examples of what it matches, a stretch of which is repeated many times."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from re import _constants as sre
from re import _parser
from typing import Any, NamedTuple

CHARACTERS = [" ", "\t", "\n", "\r", "a", "Z", "é", "中", "0", "♪", "’", *"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"]
CLASSES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}


class Pumped(NamedTuple):
    """A text of any length: something, a stretch that is repeated, and something."""

    before: str
    repeated: str
    after: str

    def build(self, length: int) -> str:
        return self.before + self.repeated * (length // len(self.repeated)) + self.after


def pump(pattern: re.Pattern[Any], count: int, seed: int = 0) -> Iterator[Pumped]:
    """Yield runs of single characters, and examples of what a pattern matches with a stretch repeated."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = _parser.parse(source, pattern.flags | re.UNICODE if isinstance(pattern.pattern, str) else re.NOFLAG)
    rng = random.Random(seed)
    for character in (" ", "a", "0", "<", "{"):
        yield Pumped("", character, "\0")
    for _ in range(count):
        example = _sample(tree, rng, {}) or "a"
        start = rng.randrange(len(example))
        end = min(len(example), start + rng.randint(1, 6))
        after = rng.choice(["", example[end:], "\0", "a", rng.choice(CHARACTERS)])
        yield Pumped(rng.choice(["", example[:start]]), example[start:end], after)


def has_possessive_group(pattern: re.Pattern[Any]) -> bool:
    """Return True for a pattern with a capturing group inside a possessive repeat or an atomic group."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    return _has_group(_parser.parse(source, pattern.flags), inside=False)


def _has_group(tree: Any, inside: bool) -> bool:
    if isinstance(tree, tuple) and tree and tree[0] in (sre.POSSESSIVE_REPEAT, sre.ATOMIC_GROUP):
        inside = True
    if isinstance(tree, tuple) and tree and tree[0] is sre.SUBPATTERN and tree[1][0] is not None and inside:
        return True
    return isinstance(tree, tuple | list | _parser.SubPattern) and any(_has_group(part, inside) for part in tree)


def _sample(tree: Any, rng: random.Random, groups: dict[int, str]) -> str:
    out = ""
    for kind, value in tree:
        if kind is sre.LITERAL:
            out += chr(value)
        elif kind is sre.NOT_LITERAL:
            out += rng.choice([character for character in CHARACTERS if ord(character) != value])
        elif kind is sre.ANY:
            out += rng.choice(CHARACTERS)
        elif kind is sre.IN:
            out += rng.choice(_members(value))
        elif kind is sre.BRANCH:
            out += _sample(rng.choice(value[1]), rng, groups)
        elif kind is sre.SUBPATTERN:
            groups[value[0]] = _sample(value[3], rng, groups)
            out += groups[value[0]]
        elif kind is sre.ATOMIC_GROUP:
            out += _sample(value, rng, groups)
        elif kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            low, high, inside = value
            most = low + 2 if high is sre.MAXREPEAT else min(high, low + 2)
            out += "".join(_sample(inside, rng, groups) for _ in range(rng.randint(low, most)))
        elif kind is sre.GROUPREF:
            out += groups.get(value, "")
    return out


def _members(items: Any) -> list[str]:
    """Return the characters of a class that are among CHARACTERS, or else its first one."""
    written, first = "[", ""
    for kind, value in items:
        if kind is sre.NEGATE:
            written += "^"
        elif kind is sre.CATEGORY:
            written += CLASSES[value]
        else:
            low, high = (value, value) if kind is sre.LITERAL else value
            written += f"{re.escape(chr(low))}-{re.escape(chr(high))}"
            first = first or chr(low)
    found = re.compile(written + "]")
    return [character for character in CHARACTERS if found.match(character)] or [first]
