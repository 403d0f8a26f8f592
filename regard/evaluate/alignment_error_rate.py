"""Alignment error rate (AER) of word alignments against gold alignments (Och & Ney 2003)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

from regard.data.readers.text import Link, iterate_lines
from regard.errors import UserError


class AlignmentScore(NamedTuple):
    """Alignment error rate, precision (fraction of links that are possible) and recall (fraction of sure links)."""

    aer: float
    precision: float
    recall: float


def compute_alignment_score(
    hypotheses: Iterable[AbstractSet[Link]],
    sure: Iterable[AbstractSet[Link]],
    possible: Iterable[AbstractSet[Link]],
) -> AlignmentScore:
    """Return AER, precision and recall over all sentences.

    AER = 1 − (|A∩S| + |A∩P|) / (|A| + |S|), precision = |A∩P| / |A|, recall = |A∩S| / |S|. Sure links are possible,
    too. Precision and recall are 1 if their denominator is 0.
    """
    in_sure = in_possible = num_links = num_sure = 0
    for links, sure_links, possible_links in zip(hypotheses, sure, possible, strict=True):
        in_sure += len(links & sure_links)
        in_possible += len(links & (possible_links | sure_links))
        num_links += len(links)
        num_sure += len(sure_links)
    error = 1 - (in_sure + in_possible) / (num_links + num_sure) if num_links + num_sure else 0.0
    return AlignmentScore(error, in_possible / num_links if num_links else 1.0, in_sure / num_sure if num_sure else 1.0)


def aer(
    hypotheses: Iterable[AbstractSet[Link]],
    sure: Iterable[AbstractSet[Link]],
    possible: Iterable[AbstractSet[Link]],
) -> float:
    """Return the alignment error rate alone."""
    return compute_alignment_score(hypotheses, sure, possible).aer


_PHARAOH_LINK = re.compile(r"(\d{1,9})([-?p])(\d{1,9})")
_NAACL_LINE = re.compile(r"(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})(?:\s+([SP]))?(?:\s+[\d.]+)?")


class GoldAlignment(NamedTuple):
    """Gold alignment of one sentence pair; `possible` includes the sure links."""

    sure: frozenset[Link]
    possible: frozenset[Link]


def compute_gold_alignment_score(
    hypotheses: Iterable[AbstractSet[Link]], gold: Sequence[GoldAlignment]
) -> AlignmentScore:
    """Return AER, precision and recall of alignments against gold alignments."""
    return compute_alignment_score(
        hypotheses, [alignment.sure for alignment in gold], [alignment.possible for alignment in gold]
    )


class _GoldLink(NamedTuple):
    """One link, the index of its sentence pair, and its position in the file."""

    pair_index: int
    link: Link
    is_sure: bool
    where: str


def read_gold_alignments(
    path: Path, pairs: Sequence[tuple[str, str]], first_index: int | None = None
) -> list[GoldAlignment]:
    """Read the gold alignment of each sentence pair, and check it against the pair's words.

    Pharaoh: one line for each pair, `0-1` for a sure link and `0?1` or `0p1` for a possible one. NAACL: one line for
    each link with the numbers of pair (from 1), source word and target word, then S or P. `first_index` is the number
    of the first word, by default 0 for Pharaoh and 1 for NAACL.
    """
    lines = list(iterate_lines(path))
    is_naacl = next((_NAACL_LINE.fullmatch(line.strip()) is not None for line in lines if line.strip()), False)
    if not is_naacl and len(lines) != len(pairs):
        raise UserError(
            f"{path} has {len(lines)} lines for {len(pairs)} pairs; it needs one line of links for each pair"
        )
    offset = first_index if first_index is not None else 1 if is_naacl else 0
    gold: list[tuple[set[Link], set[Link]]] = [(set(), set()) for _ in pairs]
    for entry in (_parse_naacl_lines if is_naacl else _parse_pharaoh_lines)(lines, path, offset):
        _check_gold_link(entry, pairs, offset)
        gold[entry.pair_index][1].add(entry.link)
        if entry.is_sure:
            gold[entry.pair_index][0].add(entry.link)
    return [GoldAlignment(frozenset(sure), frozenset(possible)) for sure, possible in gold]


def _parse_pharaoh_lines(gold_lines: Sequence[str], path: Path, first_index: int) -> Iterator[_GoldLink]:
    """Yield the links of lines with all links of a pair each."""
    for pair_index, line in enumerate(gold_lines):
        for link in line.split():
            where, match = f"{path}:{pair_index + 1}", _PHARAOH_LINK.fullmatch(link)
            if match is None:
                raise UserError(f"{where}: {link!r} is not a link; links are written 0-1 (sure) or 0?1 (possible)")
            word_pair = int(match[1]) - first_index, int(match[3]) - first_index
            yield _GoldLink(pair_index, word_pair, match[2] == "-", where)


def _parse_naacl_lines(gold_lines: Sequence[str], path: Path, first_index: int) -> Iterator[_GoldLink]:
    """Yield the links of lines with one link each."""
    for line_number, line in enumerate(gold_lines, 1):
        if line.strip():
            where, match = f"{path}:{line_number}", _NAACL_LINE.fullmatch(line.strip())
            if match is None:
                raise UserError(f"{where}: {line!r} is not a link: the numbers of pair, source and target word, S or P")
            word_pair = int(match[2]) - first_index, int(match[3]) - first_index
            yield _GoldLink(int(match[1]) - 1, word_pair, match[4] != "P", where)


def _check_gold_link(entry: _GoldLink, pairs: Sequence[tuple[str, str]], first_index: int) -> None:
    """Raise a UserError for a link to a pair or word that does not exist."""
    if not 0 <= entry.pair_index < len(pairs):
        raise UserError(
            f"{entry.where}: there is no pair {entry.pair_index + 1}; there are {len(pairs)}, counted from 1"
        )
    source, target = (len(side.split()) for side in pairs[entry.pair_index])
    left, right = entry.link
    if not (0 <= left < source and 0 <= right < target):
        raise UserError(
            f"{entry.where}: link {left + first_index}-{right + first_index} runs past the sentences, which have "
            f"{source} and {target} words (links count from {first_index})"
        )
