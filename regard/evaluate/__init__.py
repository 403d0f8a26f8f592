"""Evaluation metrics: BLEU, chrF, TER, alignment error rate, chunk F1, accuracy and confusion matrices."""

from regard.data.readers.text import Link, format_pharaoh
from regard.evaluate.alignment_error_rate import (
    AlignmentScore,
    GoldAlignment,
    aer,
    compute_alignment_score,
    read_gold_alignments,
)
from regard.evaluate.label_metrics import ConfusionMatrix, are_chunk_labels, count_chunks, sum_chunk_counts
from regard.evaluate.symmetrization import grow_diag_final_and
from regard.evaluate.translation_metrics import (
    LengthGroup,
    TranslationScores,
    bleu,
    bleu_by_length,
    chrf,
    compare_systems,
    find_nearest_translation,
    score_translations,
    ter,
)

__all__ = [
    "AlignmentScore",
    "ConfusionMatrix",
    "GoldAlignment",
    "LengthGroup",
    "Link",
    "TranslationScores",
    "aer",
    "are_chunk_labels",
    "bleu",
    "bleu_by_length",
    "chrf",
    "compare_systems",
    "compute_alignment_score",
    "count_chunks",
    "find_nearest_translation",
    "format_pharaoh",
    "grow_diag_final_and",
    "read_gold_alignments",
    "score_translations",
    "sum_chunk_counts",
    "ter",
]
