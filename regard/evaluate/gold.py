"""Gold word alignments as they are written: Pharaoh's form and NAACL's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

from regard.data.files import lines
from regard.data.links import Link
from regard.errors import UserError
from regard.evaluate.alignment import AlignmentScore, alignment_score

PHARAOH = re.compile(r"(\d{1,9})([-?p])(\d{1,9})")
NAACL = re.compile(r"(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})(?:\s+([SP]))?(?:\s+[\d.]+)?")


class Gold(NamedTuple):
    """A gold alignment of one pair; sure links are among the possible ones."""

    sure: frozenset[Link]
    possible: frozenset[Link]


def gold_score(found: Iterable[AbstractSet[Link]], gold: Sequence[Gold]) -> AlignmentScore:
    """Links of pairs against the gold ones."""
    return alignment_score(found, [one.sure for one in gold], [one.possible for one in gold])


class Entry(NamedTuple):
    """One link, in which pair it is, counted from 0, and the line that says so."""

    pair: int
    link: Link
    sure: bool
    line: int


def read_gold(path: Path, pairs: Sequence[tuple[str, str]], first: int | None = None) -> list[Gold]:
    """The links of each pair, checked against its words.

    Pharaoh: a line a pair, `0-1` for a sure link and `0?1` or `0p1` for a possible one. NAACL: a line a link, the
    number of the pair from 1, of the source word, of the target word, then S or P. `first` is the number of the first
    word: 0 for Pharaoh and 1 for NAACL where it is not given.
    """
    written = list(lines(path))
    naacl = next((NAACL.fullmatch(line.strip()) is not None for line in written if line.strip()), False)
    if not naacl and len(written) != len(pairs):
        raise UserError(f"{path} has {len(written)} lines for {len(pairs)} pairs; there is one line of links a pair")
    begin = first if first is not None else 1 if naacl else 0
    entries = naacl_entries(written, path, begin) if naacl else pharaoh_entries(written, path, begin)
    gold: list[tuple[set[Link], set[Link]]] = [(set(), set()) for _ in pairs]
    for entry in entries:
        check(entry, pairs, path, begin)
        gold[entry.pair][1].add(entry.link)
        if entry.sure:
            gold[entry.pair][0].add(entry.link)
    return [Gold(frozenset(sure), frozenset(possible)) for sure, possible in gold]


def pharaoh_entries(written: Sequence[str], path: Path, first: int) -> list[Entry]:
    """The links of all lines."""
    found = []
    for number, line in enumerate(written, 1):
        for link in line.split():
            match = PHARAOH.fullmatch(link)
            if match is None:
                raise UserError(
                    f"{path}:{number}: {link!r} is not a link; links are written 0-1 (sure) or 0?1 (possible)"
                )
            place = int(match[1]) - first, int(match[3]) - first
            found.append(Entry(number - 1, place, match[2] == "-", number))
    return found


def naacl_entries(written: Sequence[str], path: Path, first: int) -> list[Entry]:
    """One link a line."""
    found = []
    for number, line in enumerate(written, 1):
        if line.strip():
            match = NAACL.fullmatch(line.strip())
            if match is None:
                raise UserError(
                    f"{path}:{number}: {line!r} is not a link: the numbers of pair, source and target word, S or P"
                )
            place = int(match[2]) - first, int(match[3]) - first
            found.append(Entry(int(match[1]) - 1, place, match[4] != "P", number))
    return found


def check(entry: Entry, pairs: Sequence[tuple[str, str]], path: Path, first: int) -> None:
    """Whether a link is one of words that are there."""
    where = f"{path}:{entry.line}"
    if not 0 <= entry.pair < len(pairs):
        raise UserError(f"{where}: there is no pair {entry.pair + 1}; there are {len(pairs)}, counted from 1")
    source, target = (len(side.split()) for side in pairs[entry.pair])
    left, right = entry.link
    if not (0 <= left < source and 0 <= right < target):
        raise UserError(
            f"{where}: link {left + first}-{right + first} runs past the sentences, which have {source} and "
            f"{target} words (links count from {first})"
        )
