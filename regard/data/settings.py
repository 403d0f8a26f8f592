"""The `data` section of a recipe, and what it does to a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.corpus import Pair
from regard.data.links import Link
from regard.data.sentences import Examples, Sentences
from regard.errors import UserError
from regard.text import Tokenizers


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Which pairs are trained on."""

    train: tuple[str, ...] | None = None
    dev: tuple[str, ...] | None = None
    alignments: str | None = None
    source: str | None = None
    target: str | None = None
    max_length: int = 256
    dev_pairs: int = 1000

    def __post_init__(self) -> None:
        if self.max_length < 1 or self.dev_pairs < 1:
            raise ValueError(f"max_length and dev_pairs are at least 1, not {self.max_length} and {self.dev_pairs}")


class Encoding(NamedTuple):
    """Encoded pairs, and how many were left out for what."""

    examples: Examples
    empty: int
    too_long: int


def hold_out(pairs: Sequence[Pair], settings: DataSettings, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Training and dev pairs: at most a tenth, chosen by the seed; equal sources stay together on one side.

    Where no source's pairs fit into a tenth, those of the source with the fewest are dev.
    """
    by_source: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_source.setdefault(pair.source, []).append(pair)
    groups = [group for group in by_source.values() if any(is_whole(pair) for pair in group)]
    if len(groups) < 2:
        raise UserError(f"{len(groups)} distinct source sentence is too little to train and validate on; give --dev")
    wanted = min(settings.dev_pairs, max(1, sum(map(len, groups)) // 10))
    dev: list[Pair] = []
    for index in np.random.default_rng([seed, len(groups)]).permutation(len(groups)).tolist():
        if len(dev) + len(groups[index]) <= wanted:
            dev.extend(groups[index])
    dev = dev or min(groups, key=len)
    held = {pair.source for pair in dev}
    return [pair for pair in pairs if pair.source not in held], dev


def is_whole(pair: Pair) -> bool:
    """Whether both sides have text."""
    return bool(pair.source.strip() and pair.target.strip())


def encode(
    pairs: Sequence[Pair], tokenizers: Tokenizers, max_length: int, links: Sequence[AbstractSet[Link]] | None = None
) -> Encoding:
    """Pairs as ids; those with an empty side or one of more than `max_length` ids are left out and counted.

    `links` are the word alignments of the pairs, if they are known.
    """
    sources, targets, linked, empty, too_long = [], [], [], 0, 0
    for row, pair in enumerate(pairs):
        source, target = tokenizers.source.encode(pair.source), tokenizers.target.encode(pair.target)
        if not source or not target:
            empty += 1
        elif max(len(source), len(target)) > max_length:
            too_long += 1
        else:
            sources.append(source)
            targets.append(target)
            if links is not None:
                linked.append(token_links(pair, links[row], tokenizers))
    known = None if links is None else linked
    return Encoding(Examples(Sentences.of(sources), Sentences.of(targets), known), empty, too_long)


def token_links(pair: Pair, links: AbstractSet[Link], tokenizers: Tokenizers) -> npt.NDArray[np.int32]:
    """Links of words as links of all their tokens: rows of source token, target token."""
    of_source, of_target = tokenizers.source.split(pair.source)[1], tokenizers.target.split(pair.target)[1]
    rows = [
        (left, right)
        for left, source in enumerate(of_source)
        for right, target in enumerate(of_target)
        if (source, target) in links
    ]
    return np.array(rows, dtype=np.int32).reshape(-1, 2)
