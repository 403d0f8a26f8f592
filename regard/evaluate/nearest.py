"""Which of several translations is the nearest to a reference."""

from __future__ import annotations

from collections.abc import Sequence

import sacrebleu

# Short sentences have no 4-grams: BLEU goes as far as there are any, or all of them would score nothing.
SENTENCE = sacrebleu.BLEU(effective_order=True, force=True)


def nearest(translations: Sequence[str], reference: str) -> int:
    """The place of the translation with the highest sentence BLEU; of equals the first."""
    scores = [SENTENCE.sentence_score(text, [reference]).score for text in translations]
    return scores.index(max(scores))
