"""Translate text with trained models: search options, alignments, evaluation, tags and URLs."""

from regard.translate.evaluation import EvaluationResult, evaluate_translator, score_alignments
from regard.translate.inspection import (
    choose_alignment_head,
    compute_attention_by_head,
    rank_alignment_heads,
    trace_decoding,
)
from regard.translate.options import Options
from regard.translate.segmentation import Translation, describe_unaligned_tags, describe_untranslated
from regard.translate.translator import Translator, load
from regard.translate.word_alignment import Alignment

__all__ = [
    "Alignment",
    "EvaluationResult",
    "Options",
    "Translation",
    "Translator",
    "choose_alignment_head",
    "compute_attention_by_head",
    "describe_unaligned_tags",
    "describe_untranslated",
    "evaluate_translator",
    "load",
    "rank_alignment_heads",
    "score_alignments",
    "trace_decoding",
]
