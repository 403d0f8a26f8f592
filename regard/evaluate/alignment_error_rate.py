"""Word alignments against gold ones (Och & Ney 2003)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

from regard.data.readers.text_io import iterate_lines
from regard.data.sentence_pair import Link
from regard.errors import UserError


class AlignmentScore(NamedTuple):
    """How good alignments are: the error rate, the share of links that are possible, the share of sure ones found."""

    aer: float
    precision: float
    recall: float


def compute_alignment_score(
    hypotheses: Iterable[AbstractSet[Link]],
    sure: Iterable[AbstractSet[Link]],
    possible: Iterable[AbstractSet[Link]],
) -> AlignmentScore:
    """AER 1 − (|A∩S| + |A∩P|) / (|A| + |S|), precision |A∩P| / |A| and recall |A∩S| / |S| over all sentences.

    A sure link is possible, too. A share of nothing is 1.
    """
    in_sure = in_possible = found = certain = 0
    for links, sures, possibles in zip(hypotheses, sure, possible, strict=True):
        in_sure += len(links & sures)
        in_possible += len(links & (possibles | sures))
        found += len(links)
        certain += len(sures)
    error = 1 - (in_sure + in_possible) / (found + certain) if found + certain else 0.0
    return AlignmentScore(error, in_possible / found if found else 1.0, in_sure / certain if certain else 1.0)


def aer(
    hypotheses: Iterable[AbstractSet[Link]],
    sure: Iterable[AbstractSet[Link]],
    possible: Iterable[AbstractSet[Link]],
) -> float:
    """The alignment error rate alone."""
    return compute_alignment_score(hypotheses, sure, possible).aer


_PHARAOH_LINK = re.compile(r"(\d{1,9})([-?p])(\d{1,9})")
_NAACL_LINE = re.compile(r"(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})(?:\s+([SP]))?(?:\s+[\d.]+)?")


class GoldAlignment(NamedTuple):
    """A gold alignment of one pair; sure links are among the possible ones."""

    sure: frozenset[Link]
    possible: frozenset[Link]


def compute_gold_alignment_score(
    hypotheses: Iterable[AbstractSet[Link]], gold: Sequence[GoldAlignment]
) -> AlignmentScore:
    """Links of pairs against the gold ones."""
    return compute_alignment_score(hypotheses, [one.sure for one in gold], [one.possible for one in gold])


class _GoldLink(NamedTuple):
    """One link, in which pair it is, counted from 0, and the line that says so."""

    pair_index: int
    link: Link
    is_sure: bool
    line_number: int


def read_gold_alignments(
    path: Path, pairs: Sequence[tuple[str, str]], first_index: int | None = None
) -> list[GoldAlignment]:
    """The links of each pair, checked against its words.

    Pharaoh: a line a pair, `0-1` for a sure link and `0?1` or `0p1` for a possible one. NAACL: a line a link, the
    number of the pair from 1, of the source word, of the target word, then S or P. `first` is the number of the first
    word: 0 for Pharaoh and 1 for NAACL where it is not given.
    """
    written = list(iterate_lines(path))
    naacl = next((_NAACL_LINE.fullmatch(line.strip()) is not None for line in written if line.strip()), False)
    if not naacl and len(written) != len(pairs):
        raise UserError(f"{path} has {len(written)} lines for {len(pairs)} pairs; there is one line of links a pair")
    begin = first_index if first_index is not None else 1 if naacl else 0
    entries = _parse_naacl_lines(written, path, begin) if naacl else _parse_pharaoh_lines(written, path, begin)
    gold: list[tuple[set[Link], set[Link]]] = [(set(), set()) for _ in pairs]
    for entry in entries:
        _check_gold_link(entry, pairs, path, begin)
        gold[entry.pair_index][1].add(entry.link)
        if entry.is_sure:
            gold[entry.pair_index][0].add(entry.link)
    return [GoldAlignment(frozenset(sure), frozenset(possible)) for sure, possible in gold]


def _parse_pharaoh_lines(gold_lines: Sequence[str], path: Path, first_index: int) -> list[_GoldLink]:
    """The links of all lines."""
    found = []
    for number, line in enumerate(gold_lines, 1):
        for link in line.split():
            match = _PHARAOH_LINK.fullmatch(link)
            if match is None:
                raise UserError(
                    f"{path}:{number}: {link!r} is not a link; links are written 0-1 (sure) or 0?1 (possible)"
                )
            word_pair = int(match[1]) - first_index, int(match[3]) - first_index
            found.append(_GoldLink(number - 1, word_pair, match[2] == "-", number))
    return found


def _parse_naacl_lines(gold_lines: Sequence[str], path: Path, first_index: int) -> list[_GoldLink]:
    """One link a line."""
    found = []
    for number, line in enumerate(gold_lines, 1):
        if line.strip():
            match = _NAACL_LINE.fullmatch(line.strip())
            if match is None:
                raise UserError(
                    f"{path}:{number}: {line!r} is not a link: the numbers of pair, source and target word, S or P"
                )
            word_pair = int(match[2]) - first_index, int(match[3]) - first_index
            found.append(_GoldLink(int(match[1]) - 1, word_pair, match[4] != "P", number))
    return found


def _check_gold_link(entry: _GoldLink, pairs: Sequence[tuple[str, str]], path: Path, first_index: int) -> None:
    """Whether a link is one of words that are there."""
    where = f"{path}:{entry.line_number}"
    if not 0 <= entry.pair_index < len(pairs):
        raise UserError(f"{where}: there is no pair {entry.pair_index + 1}; there are {len(pairs)}, counted from 1")
    source, target = (len(side.split()) for side in pairs[entry.pair_index])
    left, right = entry.link
    if not (0 <= left < source and 0 <= right < target):
        raise UserError(
            f"{where}: link {left + first_index}-{right + first_index} runs past the sentences, which have {source} and "
            f"{target} words (links count from {first_index})"
        )
