"""A translator against a test set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from regard.data.corpus import Pair
from regard.errors import UserError
from regard.evaluate import AlignmentScore, Gold, Group, Score, bleu, by_length, chrf, gold_score, ter
from regard.search import Judged
from regard.translate.alignment import Alignment
from regard.translate.translation import Translation
from regard.translate.translator import Translator


class Assessment(NamedTuple):
    """What a translator scored, and its translations."""

    bleu: Score
    chrf: Score
    ter: Score
    perplexity: float  # of the references, per token
    accuracy: float  # share of their tokens that the model would have written next
    by_length: list[Group]
    alignment: AlignmentScore | None  # where gold alignments were given
    translations: list[Translation]


def assess(translator: Translator, pairs: Sequence[Pair], gold: Sequence[Gold] | None, beam: int = 5) -> Assessment:
    """Translates the sources, judges and aligns the pairs as they are given, and scores it all."""
    translations = translator.translate([pair.source for pair in pairs], beam=beam)
    written = [translation.text for translation in translations]
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    small = translator.tokenizers.target.lowercase  # letters that it cannot write are no mistakes
    judged = translator.judge(pairs)
    found = None if gold is None else [translator.aligned(pair, one) for pair, one in zip(pairs, judged, strict=True)]
    return Assessment(
        bleu(written, references, small),
        chrf(written, references, small),
        ter(written, references),
        *fluency(judged),
        by_length(sources, written, references, small),
        None if gold is None or found is None else against(found, gold),
        translations,
    )


def fluency(judged: Sequence[Judged]) -> tuple[float, float]:
    """Perplexity and accuracy over all tokens."""
    log_probs = [log_prob for one in judged for log_prob in one.log_probs]
    right = [likeliest for one in judged for likeliest in one.likeliest]
    return math.exp(min(-sum(log_probs) / len(log_probs), 100.0)), sum(right) / len(right)


def against(found: Sequence[Alignment | None], gold: Sequence[Gold]) -> AlignmentScore:
    """Alignments of given pairs against the gold ones."""
    if any(alignment is None for alignment in found):
        raise UserError("this model has no attention, so there are no alignments to hold against the gold ones")
    links = [set(alignment.pairs) for alignment in found if alignment is not None]
    return gold_score(links, gold)
