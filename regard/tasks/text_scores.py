"""Scores of generated text that choose the best checkpoint, for translations and captions."""

from __future__ import annotations

from collections.abc import Sequence

from regard.console import say
from regard.data.scripts import has_spaces
from regard.evaluate import bleu_of_several, chrf_of_several


def choose_measure(references: Sequence[str], language: str | None = None) -> str:
    """Return the score that chooses the best model: `bleu`, or `chrf` where words are not separated by spaces.

    BLEU counts words between spaces: in Chinese, Japanese, Thai and others it is 0 or chance.
    """
    return "bleu" if has_spaces("".join(references), language) else "chrf"


def score_texts(
    texts: Sequence[str], references: Sequence[Sequence[str]], measure: str, lowercase: bool
) -> dict[str, float]:
    """Return BLEU, and chrF where that is the measure; each text may have several references."""
    scores = {"bleu": bleu_of_several} | ({"chrf": chrf_of_several} if measure == "chrf" else {})
    return {name: score(texts, references, lowercase).value for name, score in scores.items()}


def report_measure(measure: str, best: str) -> None:
    """Write a line if chrF chooses the best checkpoint; `best` is the setting `training.best`."""
    if measure == "chrf" and best != "loss":
        say("the target language has no spaces between words: chrF, not BLEU, chooses the best checkpoint")
