"""Pairs through rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from regard.data.pair import Pair
from regard.data.rules import Rule

AHEAD = 10_000  # pairs by which each side's usual script is known


class Sieve:
    """Lets pairs through that no rule drops, and counts the others by the first rule that did."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = rules
        self.read = 0
        self.kept = 0
        self.dropped = {rule.name: 0 for rule in rules}

    def keeps(self, pair: Pair) -> bool:
        """Whether a pair passes."""
        self.read += 1
        for rule in self.rules:
            if rule.drops(pair):
                self.dropped[rule.name] += 1
                return False
        self.kept += 1
        return True

    def report(self) -> dict[str, int | dict[str, int]]:
        """The counts."""
        return {"read": self.read, "kept": self.kept, "dropped": dict(self.dropped)}


def ahead(pairs: Iterable[Pair]) -> tuple[list[Pair], Iterator[Pair]]:
    """The first pairs to learn from, and all of them."""
    rest = iter(pairs)
    first = list(islice(rest, AHEAD))
    return first, chain(first, rest)
