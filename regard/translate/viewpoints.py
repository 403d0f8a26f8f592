"""Which of a model's looks at the source aligns best: by gold alignments, or by how well words choose each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from regard.errors import UserError
from regard.evaluate import Gold
from regard.models import Viewpoint
from regard.search import Floats, Judged
from regard.translate.alignment import Alignment
from regard.translate.assessment import against
from regard.translate.trace import one_model
from regard.translate.translator import Translator, placed


class Tried(NamedTuple):
    """A viewpoint, the share of words that are linked both ways, and the alignment error rate where gold is known."""

    viewpoint: Viewpoint
    mutual: float
    aer: float | None


def ranked_viewpoints(
    translator: Translator, pairs: Sequence[tuple[str, str]], gold: Sequence[Gold] | None = None
) -> list[Tried]:
    """Every viewpoint of the model, the best first; the translator is left with the best.

    Without gold the best is the one by which most words are linked both ways: each is what the other looks at most.
    """
    decoder = one_model(translator).decoder
    tried = []
    for viewpoint in decoder.viewpoints():
        decoder.viewpoint = viewpoint
        judged = translator.judge(pairs)
        tried += [
            measured(viewpoint._replace(after=after), alignments(translator, pairs, judged, after), gold)
            for after in (False, True)
        ]
    if not tried:
        raise UserError("this model looks at the source from one place only; there is nothing to choose")
    tried.sort(key=lambda one: -one.mutual if one.aer is None else one.aer)
    decoder.viewpoint = tried[0].viewpoint
    return tried


def alignments(
    translator: Translator, pairs: Sequence[tuple[str, str]], judged: Sequence[Judged], after: bool
) -> list[Alignment]:
    """Those of pairs that were judged step by step."""
    seen = (one._replace(hypothesis=placed(one.hypothesis, 0, after)) for one in judged)
    found = [translator.aligned(pair, one) for pair, one in zip(pairs, seen, strict=True)]
    return [one for one in found if one is not None]


def measured(viewpoint: Viewpoint, found: Sequence[Alignment], gold: Sequence[Gold] | None) -> Tried:
    """What alignments from a viewpoint are worth."""
    words = sum(sum(one.soft.shape) for one in found)
    both = sum(2 * mutual(one.soft) for one in found)
    return Tried(viewpoint, both / max(1, words), None if gold is None else against(found, gold).aer)


def mutual(soft: Floats) -> int:
    """How many links of target and source words there are in which each is the other's strongest."""
    if not soft.size:
        return 0
    strongest = soft.argmax(1)
    linked = soft.max(1) > 0
    return int((linked & (soft.argmax(0)[strongest] == np.arange(len(soft)))).sum())
