"""Word alignments against gold ones (Och & Ney 2003)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

from regard.data.files import lines
from regard.data.links import Link
from regard.errors import UserError

LINK = re.compile(r"(\d+)([-?])(\d+)")


def aer(
    hypotheses: Iterable[AbstractSet[Link]],
    sure: Iterable[AbstractSet[Link]],
    possible: Iterable[AbstractSet[Link]],
) -> float:
    """Alignment error rate 1 − (|A∩S| + |A∩P|) / (|A| + |S|) over all sentences; a sure link is possible too."""
    hits = links = 0
    for found, certain, allowed in zip(hypotheses, sure, possible, strict=True):
        hits += len(found & certain) + len(found & (allowed | certain))
        links += len(found) + len(certain)
    return 1 - hits / links if links else 0.0


class Gold(NamedTuple):
    """A gold alignment of one pair."""

    sure: frozenset[Link]
    possible: frozenset[Link]


def read_gold(path: Path, pairs: Sequence[tuple[str, str]]) -> list[Gold]:
    """Pharaoh lines, `0-1` for a sure link and `0?1` for a possible one, checked against the pairs they belong to."""
    gold = [parse_gold(line, path, number) for number, line in enumerate(lines(path), 1)]
    if len(gold) != len(pairs):
        raise UserError(f"{path} has {len(gold)} lines for {len(pairs)} pairs; there is one line of links a pair")
    for number, (links, (source, target)) in enumerate(zip(gold, pairs, strict=True), 1):
        size = len(source.split()), len(target.split())
        for link in sorted(links.possible):
            if link[0] >= size[0] or link[1] >= size[1]:
                raise UserError(
                    f"{path}:{number}: link {link[0]}-{link[1]} runs past the sentences, which have {size[0]} and "
                    f"{size[1]} words (links count from 0)"
                )
    return gold


def parse_gold(line: str, path: Path, number: int) -> Gold:
    """One line of links."""
    sure, possible = set(), set()
    for written in line.split():
        match = LINK.fullmatch(written)
        if match is None:
            raise UserError(
                f"{path}:{number}: {written!r} is not a link; links are written 0-1 (sure) or 0?1 (possible)"
            )
        link = int(match[1]), int(match[3])
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Gold(frozenset(sure), frozenset(possible))
