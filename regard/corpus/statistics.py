"""What is in a corpus, counted in one pass and little memory."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from regard.corpus.filters import FilterPipeline, PairFilter, count_words, hash_text
from regard.data.sentence_pair import Pair
from regard.data.unicode_scripts import count_scripts

_HISTOGRAM_BINS = (0, 1, 6, 11, 16, 21, 31, 41, 61, 81, 101, 201)  # words at which a bar of the histogram begins


class SideStatistics:
    """Characters and lengths of one side."""

    def __init__(self) -> None:
        self.characters: Counter[str] = Counter()
        self.lengths: Counter[float] = Counter()
        self.empty = 0

    def add_sentence(self, text: str) -> int:
        """One sentence; how many words it has."""
        length = count_words(text)
        self.characters.update(text)
        self.lengths[length] += 1
        self.empty += not text.strip()
        return length

    def to_dict(self) -> dict[str, Any]:
        """The figures."""
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
    """A number of pairs, each of all that come with the same chance."""

    def __init__(self, size: int, seed: int) -> None:
        self.pairs: list[tuple[int, Pair]] = []
        self._size, self._random, self._count = size, random.Random(seed), 0

    def add_pair(self, pair: Pair) -> None:
        """One more pair, which may take the place of another."""
        self._count += 1
        if len(self.pairs) < self._size:
            self.pairs.append((self._count, pair))
        elif (place := self._random.randrange(self._count)) < self._size:
            self.pairs[place] = (self._count, pair)


class CorpusStatistics:
    """Everything about a corpus that can be said after one look at each pair; of a pair 8 bytes stay, twice."""

    def __init__(self, filters: Sequence[PairFilter], num_samples: int = 5, seed: int = 1) -> None:
        self.source, self.target = SideStatistics(), SideStatistics()
        self._filters, self._sample = FilterPipeline(filters), ReservoirSample(num_samples, seed)
        self._pair_hashes, self._source_hashes = array("Q"), array("Q")
        self._ratios: Counter[float] = Counter()

    def add_pair(self, pair: Pair) -> None:
        """One pair."""
        source, target = self.source.add_sentence(pair.source), self.target.add_sentence(pair.target)
        if source and target:
            self._ratios[round(target / source, 2)] += 1
        self._pair_hashes.append(hash_text(pair.source, pair.target))
        self._source_hashes.append(hash_text(pair.source))
        self._filters.accepts(pair)
        self._sample.add_pair(pair)

    def to_dict(self) -> dict[str, Any]:
        """All figures."""
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
    """How many of the keys came before."""
    import numpy as np

    return len(hashes) - len(np.unique(np.frombuffer(hashes, dtype=np.uint64)))


def summarize_distribution(counts: Mapping[float, int]) -> dict[str, float]:
    """Mean, quantiles and ends of values that were counted."""
    total = sum(counts.values())
    if not total:
        return {}
    mean = sum(value * count for value, count in counts.items()) / total
    shares = {"min": 0.0, "p5": 0.05, "median": 0.5, "p95": 0.95, "max": 1.0}
    return {"mean": mean} | {name: find_quantile(counts, share) for name, share in shares.items()}


def find_quantile(counts: Mapping[float, int], fraction: float) -> float:
    """The smallest value that at least this share of all does not exceed."""
    wanted, passed = fraction * sum(counts.values()), 0
    for value in sorted(counts):
        passed += counts[value]
        if passed >= wanted:
            return value
    raise ValueError("nothing was counted")


def make_length_histogram(lengths: Mapping[float, int]) -> dict[str, int]:
    """Sentences by their number of words; bars before the first and after the last that has any are left out."""
    ends = [*_HISTOGRAM_BINS[1:], None]
    bars = {
        _format_bin(start, end): sum(
            n for length, n in lengths.items() if start <= length and (end is None or length < end)
        )
        for start, end in zip(_HISTOGRAM_BINS, ends, strict=True)
    }
    filled = [number for number, count in enumerate(bars.values()) if count]
    return dict(list(bars.items())[filled[0] : filled[-1] + 1]) if filled else {}


def _format_bin(start: int, end: int | None) -> str:
    """A bar's name: 1-5, 201+."""
    if end is None:
        return f"{start}+"
    return str(start) if end == start + 1 else f"{start}-{end - 1}"
