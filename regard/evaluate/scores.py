"""Scores of translations, by sacreBLEU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sacrebleu


class Score(NamedTuple):
    """A figure, and the signature that says how it was computed."""

    value: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus BLEU with sacreBLEU's usual settings; `force` spares its warning about tokenised text."""
    return measured(sacrebleu.BLEU(force=True), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus chrF2."""
    return measured(sacrebleu.CHRF(), hypotheses, references)


def measured(metric: sacrebleu.BLEU | sacrebleu.CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """One of sacreBLEU's metrics over a corpus."""
    if not hypotheses or len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references; each needs one")
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score(float(value), str(metric.get_signature()))
