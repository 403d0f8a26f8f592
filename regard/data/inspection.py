"""What is in a corpus, counted in one pass and little memory."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from regard.data.cleaning import Sieve
from regard.data.lengths import words
from regard.data.pair import Pair
from regard.data.rules import Rule
from regard.data.scripts import scripts
from regard.data.seen import key

BINS = (0, 1, 6, 11, 16, 21, 31, 41, 61, 81, 101, 201)  # words at which a bar of the histogram begins


class Side:
    """Characters and lengths of one side."""

    def __init__(self) -> None:
        self.characters: Counter[str] = Counter()
        self.lengths: Counter[float] = Counter()
        self.empty = 0

    def add(self, text: str) -> int:
        """One sentence; how many words it has."""
        length = words(text)
        self.characters.update(text)
        self.lengths[length] += 1
        self.empty += not text.strip()
        return length

    def report(self) -> dict[str, Any]:
        """The figures."""
        letters = scripts(self.characters)
        return {
            "empty": self.empty,
            "characters": self.characters.total(),
            "distinct_characters": len(self.characters),
            "words": spread(self.lengths),
            "histogram": histogram(self.lengths),
            "scripts": {name: count / letters.total() for name, count in letters.most_common()},
        }


class Sample:
    """A number of pairs, each of all that come with the same chance."""

    def __init__(self, size: int, seed: int) -> None:
        self.pairs: list[tuple[int, Pair]] = []
        self._size, self._random, self._count = size, random.Random(seed), 0

    def add(self, pair: Pair) -> None:
        """One more pair, which may take the place of another."""
        self._count += 1
        if len(self.pairs) < self._size:
            self.pairs.append((self._count, pair))
        elif (place := self._random.randrange(self._count)) < self._size:
            self.pairs[place] = (self._count, pair)


class Inspection:
    """Everything about a corpus that can be said after one look at each pair; of a pair 8 bytes stay, twice."""

    def __init__(self, rules: Sequence[Rule], samples: int = 5, seed: int = 1) -> None:
        self.source, self.target = Side(), Side()
        self._sieve, self._sample = Sieve(rules), Sample(samples, seed)
        self._pairs, self._sources = array("Q"), array("Q")
        self._ratios: Counter[float] = Counter()

    def add(self, pair: Pair) -> None:
        """One pair."""
        source, target = self.source.add(pair.source), self.target.add(pair.target)
        if source and target:
            self._ratios[round(target / source, 2)] += 1
        self._pairs.append(key(pair.source, pair.target))
        self._sources.append(key(pair.source))
        self._sieve.keeps(pair)
        self._sample.add(pair)

    def report(self) -> dict[str, Any]:
        """All figures."""
        return {
            "pairs": len(self._pairs),
            "duplicates": repeated(self._pairs),
            "duplicate_sources": repeated(self._sources),
            "source": self.source.report(),
            "target": self.target.report(),
            "ratio": spread(self._ratios),
            "clean": self._sieve.report(),
            "samples": [
                {"number": number, "source": pair.source, "target": pair.target}
                for number, pair in sorted(self._sample.pairs)
            ],
        }


def repeated(keys: array[int]) -> int:
    """How many of the keys came before."""
    import numpy as np

    return len(keys) - len(np.unique(np.frombuffer(keys, dtype=np.uint64)))


def spread(counts: Mapping[float, int]) -> dict[str, float]:
    """Mean, quantiles and ends of values that were counted."""
    total = sum(counts.values())
    if not total:
        return {}
    mean = sum(value * count for value, count in counts.items()) / total
    shares = {"min": 0.0, "p5": 0.05, "median": 0.5, "p95": 0.95, "max": 1.0}
    return {"mean": mean} | {name: quantile(counts, share) for name, share in shares.items()}


def quantile(counts: Mapping[float, int], share: float) -> float:
    """The smallest value that at least this share of all does not exceed."""
    wanted, passed = share * sum(counts.values()), 0
    for value in sorted(counts):
        passed += counts[value]
        if passed >= wanted:
            return value
    raise ValueError("nothing was counted")


def histogram(lengths: Mapping[float, int]) -> dict[str, int]:
    """Sentences by their number of words; bars before the first and after the last that has any are left out."""
    ends = [*BINS[1:], None]
    bars = {
        label(start, end): sum(n for length, n in lengths.items() if start <= length and (end is None or length < end))
        for start, end in zip(BINS, ends, strict=True)
    }
    filled = [number for number, count in enumerate(bars.values()) if count]
    return dict(list(bars.items())[filled[0] : filled[-1] + 1]) if filled else {}


def label(start: int, end: int | None) -> str:
    """A bar's name: 1-5, 201+."""
    if end is None:
        return f"{start}+"
    return str(start) if end == start + 1 else f"{start}-{end - 1}"
