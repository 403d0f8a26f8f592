"""A translator against a test set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from regard.data.corpus import Pair
from regard.errors import UserError
from regard.evaluate import Gold, Score, aer, bleu, chrf
from regard.translate.translation import Translation
from regard.translate.translator import Translator


class Assessment(NamedTuple):
    """What a translator scored, and its translations."""

    bleu: Score
    chrf: Score
    aer: float | None  # where gold alignments were given
    translations: list[Translation]


def assess(translator: Translator, pairs: Sequence[Pair], gold: Sequence[Gold] | None, beam: int = 5) -> Assessment:
    """Translates the sources, aligns the pairs as they are given, and scores both."""
    translations = translator.translate([pair.source for pair in pairs], beam=beam)
    written = [translation.text for translation in translations]
    references = [pair.target for pair in pairs]
    error = None if gold is None else alignment_error(translator, pairs, gold)
    return Assessment(bleu(written, references), chrf(written, references), error, translations)


def alignment_error(translator: Translator, pairs: Sequence[Pair], gold: Sequence[Gold]) -> float:
    """AER of the model's own alignments of given pairs."""
    found = list(translator.align(pairs))
    if any(alignment is None for alignment in found):
        raise UserError("this model has no attention, so there are no alignments to hold against the gold ones")
    links = [set(alignment.pairs) for alignment in found if alignment is not None]
    return aer(links, [links.sure for links in gold], [links.possible for links in gold])
