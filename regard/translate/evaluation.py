"""A translator against a test set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from regard.data.readers.dispatch import Pair
from regard.errors import UserError
from regard.evaluate import (
    AlignmentScore,
    GoldAlignment,
    LengthGroup,
    MetricScore,
    bleu,
    bleu_by_length,
    chrf,
    compute_gold_alignment_score,
    ter,
)
from regard.search import ScoredTarget
from regard.translate.segmentation import Translation
from regard.translate.translator import Translator
from regard.translate.word_alignment import Alignment


class EvaluationResult(NamedTuple):
    """What a translator scored, and its translations."""

    bleu: MetricScore
    chrf: MetricScore
    ter: MetricScore
    perplexity: float  # of the references, per token
    accuracy: float  # share of their tokens that the model would have written next
    by_length: list[LengthGroup]
    alignment: AlignmentScore | None  # where gold alignments were given
    translations: list[Translation]


def evaluate_translator(
    translator: Translator, pairs: Sequence[Pair], gold: Sequence[GoldAlignment] | None, beam: int = 5
) -> EvaluationResult:
    """Translates the sources, judges and aligns the pairs as they are given, and scores it all."""
    translations = translator.translate([pair.source for pair in pairs], beam=beam)
    written = [translation.text for translation in translations]
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    small = translator.tokenizers.target.lowercase  # letters that it cannot write are no mistakes
    judged = translator.score_pairs(pairs)
    found = (
        None
        if gold is None
        else [translator.align_scored_pair(pair, one) for pair, one in zip(pairs, judged, strict=True)]
    )
    return EvaluationResult(
        bleu(written, references, small),
        chrf(written, references, small),
        ter(written, references),
        *compute_perplexity_and_accuracy(judged),
        bleu_by_length(sources, written, references, small),
        None if gold is None or found is None else score_alignments(found, gold),
        translations,
    )


def compute_perplexity_and_accuracy(scored: Sequence[ScoredTarget]) -> tuple[float, float]:
    """Perplexity and accuracy over all tokens."""
    log_probs = [log_prob for one in scored for log_prob in one.log_probs]
    right = [likeliest for one in scored for likeliest in one.is_top]
    return math.exp(min(-sum(log_probs) / len(log_probs), 100.0)), sum(right) / len(right)


def score_alignments(alignments: Sequence[Alignment | None], gold: Sequence[GoldAlignment]) -> AlignmentScore:
    """Alignments of given pairs against the gold ones."""
    if any(alignment is None for alignment in alignments):
        raise UserError("this model has no attention, so there are no alignments to hold against the gold ones")
    links = [set(alignment.pairs) for alignment in alignments if alignment is not None]
    return compute_gold_alignment_score(links, gold)
