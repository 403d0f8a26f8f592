"""Evaluate a translator on a test set: BLEU, chrF, TER, perplexity, BLEU by length, alignment error rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from regard.data.readers.text import Pair
from regard.errors import UserError
from regard.evaluate.alignment_error_rate import AlignmentScore, GoldAlignment, compute_alignment_score
from regard.evaluate.translation_metrics import DEFAULT_TOKENIZER, TranslationScores, score_translations
from regard.search.scoring import ScoredTarget
from regard.translate.translation import Alignment, Translation
from regard.translate.translator import Translator


class EvaluationResult(NamedTuple):
    """Scores of a translator on a test set, and its translations."""

    scores: TranslationScores
    perplexity: float  # of the references, per token
    accuracy: float  # fraction of reference tokens that are the model's most probable next token
    alignment: AlignmentScore | None  # None without gold alignments
    translations: list[Translation]


def evaluate_translator(
    translator: Translator,
    pairs: Sequence[Pair],
    gold: Sequence[GoldAlignment] | None,
    beam: int = 5,
    tokenize: str = DEFAULT_TOKENIZER,
    segmented: Sequence[Pair] | None = None,
    lowercase: bool = False,
) -> EvaluationResult:
    """Translate the sources, score and align the given pairs, and compute all metrics, BLEU with a tokenizer.

    `segmented` are the pairs with the words that the gold alignments number; see `Translator.align`. A model without
    capital letters is scored as with `lowercase`: case-insensitively.
    """
    sources = [pair.source for pair in pairs]
    translations = translator.translate(sources, beam=beam)
    hypotheses = [translation.text for translation in translations]
    scored = translator.score_pairs(pairs)
    align = partial(translator.align_scored_pair, presegmented=segmented is not None)
    alignments = [] if gold is None else list(map(align, segmented or pairs, scored))
    target = translator.tokenizers.target
    references = [target.lower_dotless_i(pair.target) for pair in pairs]
    return EvaluationResult(
        score_translations(sources, hypotheses, references, lowercase or target.lowercase, tokenize),
        *compute_perplexity_and_accuracy(scored),
        None if gold is None else score_alignments(alignments, gold),
        translations,
    )


def compute_perplexity_and_accuracy(scored: Sequence[ScoredTarget]) -> tuple[float, float]:
    """Return the perplexity and the accuracy over all target tokens."""
    log_probs = [log_prob for target in scored for log_prob in target.log_probs]
    is_top = [top for target in scored for top in target.is_top]
    return math.exp(min(-sum(log_probs) / len(log_probs), 100.0)), sum(is_top) / len(is_top)


def score_alignments(alignments: Sequence[Alignment | None], gold: Sequence[GoldAlignment]) -> AlignmentScore:
    """Compare alignments with gold alignments; raise UserError if the model has no attention."""
    if any(alignment is None for alignment in alignments):
        raise UserError("this model has no attention, so it has no alignments to compare with the gold alignments")
    links = [set(alignment.pairs) for alignment in alignments if alignment is not None]
    return compute_alignment_score(links, gold)
