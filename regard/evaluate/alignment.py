"""Word alignments against gold ones (Och & Ney 2003)."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from regard.data.links import Link


class AlignmentScore(NamedTuple):
    """How good alignments are: the error rate, the share of links that are possible, the share of sure ones found."""

    aer: float
    precision: float
    recall: float


def alignment_score(
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
    return alignment_score(hypotheses, sure, possible).aer
