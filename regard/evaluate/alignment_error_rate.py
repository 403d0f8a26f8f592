"""Word alignments: alignment error rate (AER) against gold alignments, and symmetrization (Och & Ney 2003)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from regard.data.readers.text import Link, iterate_lines
from regard.errors import UserError
from regard.tokenizers.segmentation import has_unspaced_script, split_words


class GoldAlignment(NamedTuple):
    """Gold alignment of one sentence pair; sure links are possible, too."""

    sure: frozenset[Link]
    possible: frozenset[Link]


class AlignmentScore(NamedTuple):
    """Alignment error rate, precision (fraction of links that are possible) and recall (fraction of sure links)."""

    aer: float
    precision: float
    recall: float


def compute_alignment_score(hypotheses: Iterable[AbstractSet[Link]], gold: Iterable[GoldAlignment]) -> AlignmentScore:
    """Return AER, precision and recall over all sentences.

    AER = 1 − (|A∩S| + |A∩P|) / (|A| + |S|), precision = |A∩P| / |A|, recall = |A∩S| / |S|. Precision and recall are 1
    if their denominator is 0.
    """
    in_sure = in_possible = num_links = num_sure = 0
    for links, (sure, possible) in zip(hypotheses, gold, strict=True):
        in_sure += len(links & sure)
        in_possible += len(links & (possible | sure))
        num_links += len(links)
        num_sure += len(sure)
    error = 1 - (in_sure + in_possible) / (num_links + num_sure) if num_links + num_sure else 0.0
    return AlignmentScore(error, in_possible / num_links if num_links else 1.0, in_sure / num_sure if num_sure else 1.0)


def aer(
    hypotheses: Iterable[AbstractSet[Link]], sure: Iterable[AbstractSet[Link]], possible: Iterable[AbstractSet[Link]]
) -> float:
    """Return the alignment error rate alone."""
    gold = (GoldAlignment(*map(frozenset, links)) for links in zip(sure, possible, strict=True))
    return compute_alignment_score(hypotheses, gold).aer


_PHARAOH_LINK = re.compile(r"(?P<source>\d{1,9})(?P<kind>[-?p])(?P<target>\d{1,9})")
_NAACL_LINK = re.compile(
    r"(?P<pair>\d{1,9})\s+(?P<source>\d{1,9})\s+(?P<target>\d{1,9})(?:\s+(?P<kind>[SP]))?(?:\s+[\d.]+)?"
)
_POSSIBLE_KINDS = ("?", "p", "P")


def read_gold_alignments(
    path: Path, pairs: Sequence[tuple[str, str]], first_index: int | None = None, presegmented: bool = False
) -> list[GoldAlignment]:
    """Read the gold alignment of each sentence pair, and check it against the pair's words.

    Pharaoh: one line for each pair, `0-1` for a sure link and `0?1` or `0p1` for a possible one. NAACL: one line for
    each link with the numbers of pair (from 1), source word and target word, then S or P. `first_index` is the number
    of the first word, by default 0 for Pharaoh and 1 for NAACL. The words of `presegmented` texts are those between
    spaces also in scripts that have none.
    """

    @cache
    def count_words(pair_index: int) -> list[int]:
        return [len(side.split() if presegmented else split_words(side)) for side in pairs[pair_index]]

    lines = list(map(str.strip, iterate_lines(path)))
    is_naacl = _NAACL_LINK.fullmatch(next(filter(None, lines), "")) is not None
    if not is_naacl and len(lines) != len(pairs):
        raise UserError(
            f"{path} has {len(lines)} lines for {len(pairs)} pairs; it needs one line of links for each pair"
        )
    if first_index is None:
        first_index = 1 if is_naacl else 0
    sure, possible = ([set[Link]() for _ in pairs] for _ in ("sure", "possible"))
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}"
        links = ([line] if line else []) if is_naacl else line.split()
        for text in links:
            match = (_NAACL_LINK if is_naacl else _PHARAOH_LINK).fullmatch(text)
            if match is None and is_naacl:
                raise UserError(f"{where}: {text!r} is not a link: the numbers of pair, source and target word, S or P")
            if match is None:
                raise UserError(f"{where}: {text!r} is not a link; links are written 0-1 (sure) or 0?1 (possible)")
            pair_index = int(match["pair"]) - 1 if is_naacl else number - 1
            if not 0 <= pair_index < len(pairs):
                raise UserError(f"{where}: there is no pair {pair_index + 1}; there are {len(pairs)}, counted from 1")
            link = int(match["source"]) - first_index, int(match["target"]) - first_index
            num_words = count_words(pair_index)
            if not all(0 <= index < count for index, count in zip(link, num_words, strict=True)):
                is_unspaced = any(map(has_unspaced_script, pairs[pair_index]))
                hint = "; text without spaces must be the segmented one, with --presegmented" if is_unspaced else ""
                raise UserError(
                    f"{where}: link {link[0] + first_index}-{link[1] + first_index} runs past the sentences, which "
                    f"have {num_words[0]} and {num_words[1]} words (links count from {first_index}){hint}"
                )
            possible[pair_index].add(link)
            if match["kind"] not in _POSSIBLE_KINDS:
                sure[pair_index].add(link)
    return [GoldAlignment(*map(frozenset, links)) for links in zip(sure, possible, strict=True)]


_NEIGHBOUR_OFFSETS = ((0, -1), (-1, 0), (0, 1), (1, 0), (-1, -1), (1, -1), (-1, 1), (1, 1))
_get_target_and_source = itemgetter(1, 0)


def grow_diag_final_and(forward: AbstractSet[Link], backward: AbstractSet[Link]) -> set[Link]:
    """Symmetrize the word alignments of two directions (Koehn et al. 2005).

    The links are the intersection, then neighbours in the union, then links between two unaligned words. A neighbour is
    added if it aligns a word that is still unaligned. Links grow in place, target word by target word, as in the
    authors' pseudo-code.
    """
    union, links = forward | backward, set(forward & backward)
    sources, targets = {source for source, _ in links}, {target for _, target in links}

    def count_unaligned_words(link: Link) -> int:
        return (link[0] not in sources) + (link[1] not in targets)

    def add_link(link: Link) -> None:
        links.add(link)
        sources.add(link[0])
        targets.add(link[1])

    num_links_before = -1
    while num_links_before < len(links):
        num_links_before = len(links)
        for source, target in sorted(union, key=_get_target_and_source):
            if (source, target) in links:
                for source_offset, target_offset in _NEIGHBOUR_OFFSETS:
                    link = source + source_offset, target + target_offset
                    if link in union and link not in links and count_unaligned_words(link):
                        add_link(link)
    for direction in (forward, backward):
        for link in sorted(direction, key=_get_target_and_source):
            if count_unaligned_words(link) == 2:
                add_link(link)
    return links
