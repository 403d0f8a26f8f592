"""Corpus statistics: lengths, length ratios, scripts, duplicates and samples, in one pass with little memory."""

from __future__ import annotations

import random
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from regard.corpus.filters import FilterPipeline, PairFilter, count_words, hash_text
from regard.data.languages import count_scripts
from regard.data.readers.text import Pair

# Number of words at which a bin begins, and its name.
_HISTOGRAM_BINS = {0: "0", 1: "1-5", 6: "6-10", 11: "11-15", 16: "16-20", 21: "21-30", 31: "31-40", 41: "41-60"}
_HISTOGRAM_BINS |= {61: "61-80", 81: "81-100", 101: "101-200", 201: "201+"}


class SideStatistics:
    """Characters and sentence lengths of one side."""

    def __init__(self) -> None:
        self.characters: Counter[str] = Counter()
        self.lengths: Counter[float] = Counter()
        self.empty = 0

    def add_sentence(self, text: str) -> int:
        """Count a sentence, and return its number of words."""
        length = count_words(text)
        self.characters.update(text)
        self.lengths[length] += 1
        self.empty += not text.strip()
        return length

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics."""
        letters = count_scripts(self.characters)
        return {
            "empty": self.empty,
            "characters": self.characters.total(),
            "distinct_characters": len(self.characters),
            "words": summarize_distribution(self.lengths),
            "histogram": make_length_histogram(self.lengths),
            "scripts": {name: count / letters.total() for name, count in letters.most_common()},
        }


class ReservoirSample:
    """A uniform random sample of pairs of a stream (reservoir sampling)."""

    def __init__(self, size: int, seed: int) -> None:
        self.pairs: list[tuple[int, Pair]] = []
        self._size, self._random, self._count = size, random.Random(seed), 0

    def add_pair(self, pair: Pair) -> None:
        """Add a pair, which may replace another."""
        self._count += 1
        if len(self.pairs) < self._size:
            self.pairs.append((self._count, pair))
        elif (index := self._random.randrange(self._count)) < self._size:
            self.pairs[index] = (self._count, pair)


class CorpusStatistics:
    """All statistics of a corpus, collected in one pass; 16 bytes of hashes are kept for each pair."""

    def __init__(self, filters: Sequence[PairFilter], num_samples: int = 5, seed: int = 1) -> None:
        self.source, self.target = SideStatistics(), SideStatistics()
        self._filters, self._sample = FilterPipeline(filters), ReservoirSample(num_samples, seed)
        self._pair_hashes, self._source_hashes = array("Q"), array("Q")
        self._ratios: Counter[float] = Counter()

    def add_pair(self, pair: Pair) -> None:
        """Count one pair."""
        source, target = self.source.add_sentence(pair.source), self.target.add_sentence(pair.target)
        if source and target:
            self._ratios[round(target / source, 2)] += 1
        self._pair_hashes.append(hash_text(pair.source, pair.target))
        self._source_hashes.append(hash_text(pair.source))
        self._filters.accepts(pair)
        self._sample.add_pair(pair)

    def to_dict(self) -> dict[str, Any]:
        """Return all statistics."""
        return {
            "pairs": len(self._pair_hashes),
            "duplicates": _count_duplicates(self._pair_hashes),
            "duplicate_sources": _count_duplicates(self._source_hashes),
            "source": self.source.to_dict(),
            "target": self.target.to_dict(),
            "ratio": summarize_distribution(self._ratios),
            "clean": self._filters.to_dict(),
            "samples": [
                {"number": number, "source": pair.source, "target": pair.target}
                for number, pair in sorted(self._sample.pairs)
            ],
        }


def _count_duplicates(hashes: array[int]) -> int:
    """Return the number of hashes that occurred before."""
    import numpy as np

    return len(hashes) - len(np.unique(np.frombuffer(hashes, dtype=np.uint64)))


def summarize_distribution(counts: Mapping[float, int]) -> dict[str, float]:
    """Return mean, minimum, maximum and quantiles, given counts of values."""
    if not any(counts.values()):
        return {}
    mean = sum(value * count for value, count in counts.items()) / sum(counts.values())
    fractions = {"min": 0.0, "p5": 0.05, "median": 0.5, "p95": 0.95, "max": 1.0}
    return {"mean": mean} | {name: find_quantile(counts, fraction) for name, fraction in fractions.items()}


def find_quantile(counts: Mapping[float, int], fraction: float) -> float:
    """Return the smallest value such that at least `fraction` of all values are not larger."""
    threshold, cumulative = fraction * sum(counts.values()), 0
    for value in sorted(counts):
        cumulative += counts[value]
        if cumulative >= threshold:
            return value
    raise ValueError("nothing was counted")


def make_length_histogram(lengths: Mapping[float, int]) -> dict[str, int]:
    """Return the number of sentences by number of words, without empty bins at either end."""
    starts, counts = list(_HISTOGRAM_BINS), Counter[int]()
    for length, count in lengths.items():
        counts[bisect_right(starts, length) - 1] += count
    bins = range(min(counts), max(counts) + 1) if counts else ()
    return {_HISTOGRAM_BINS[starts[index]]: counts[index] for index in bins}
