"""Evaluation metrics: BLEU, chrF, TER, alignment error rate, chunk F1, accuracy and confusion matrices."""

from regard.evaluate.alignment_error_rate import aer

__all__ = ["aer"]
