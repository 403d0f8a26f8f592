"""Scores of translations, by sacreBLEU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sacrebleu
from sacrebleu.significance import PairedTest

from regard.console import log_message
from regard.data.unicode_scripts import has_spaces

_LENGTH_BOUNDS = (10, 20, 30, 40, 50)  # words of a source at which one group of sentences ends and the next begins

_SacrebleuMetric = sacrebleu.BLEU | sacrebleu.CHRF | sacrebleu.TER


class MetricScore(NamedTuple):
    """A figure, and the signature that says how it was computed."""

    value: float
    signature: str


class LengthGroup(NamedTuple):
    """The sentences of some length, and their BLEU."""

    words: str
    pairs: int
    bleu: float


class SystemComparison(NamedTuple):
    """One system of several: its score, the 95 % interval of its mean, and how likely chance made the gap."""

    name: str
    value: float
    mean: float
    interval: float
    p_value: float | None  # None: the first system, which the others are held against


def bleu(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> MetricScore:
    """Corpus BLEU with sacreBLEU's usual settings; `force` spares its warning about tokenised text."""
    return _score_corpus(sacrebleu.BLEU(lowercase=lowercase, force=True), hypotheses, references)


def bleu_multi_reference(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool = False
) -> MetricScore:
    """The same where each may have several references, one at the least, and not all as many."""
    return _score_multi_reference(sacrebleu.BLEU(lowercase=lowercase, force=True), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> MetricScore:
    """Corpus chrF2."""
    return _score_corpus(sacrebleu.CHRF(lowercase=lowercase), hypotheses, references)


def chrf_multi_reference(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool = False
) -> MetricScore:
    """Corpus chrF2 where each may have several references, one at the least, and not all as many."""
    return _score_multi_reference(sacrebleu.CHRF(lowercase=lowercase), hypotheses, references)


def ter(hypotheses: Sequence[str], references: Sequence[str]) -> MetricScore:
    """Corpus TER: edits per word of the references, in percent, the fewer the better.

    Letters' case never counts, and punctuation is a word of its own wherever it is written.
    """
    return _score_corpus(sacrebleu.TER(normalized=True), hypotheses, references)


def warn_about_bleu(references: Sequence[str], language: str | None = None) -> None:
    """Write a warning if the references have no spaces between words, so that BLEU counts no words."""
    if not has_spaces("".join(references), language):
        log_message(
            "warning: the target language has no spaces between words: BLEU (tok:13a) is meaningless, compare chrF"
        )


def _score_corpus(metric: _SacrebleuMetric, hypotheses: Sequence[str], references: Sequence[str]) -> MetricScore:
    """One of sacreBLEU's metrics over a corpus."""
    if not hypotheses or len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references; each needs one")
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return MetricScore(float(value), str(metric.get_signature()))


def _score_multi_reference(
    metric: _SacrebleuMetric, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> MetricScore:
    if not hypotheses or len(hypotheses) != len(references) or not all(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} lists of references; each needs one")
    most = max(map(len, references))
    streams: Any = [[some[n] if n < len(some) else None for some in references] for n in range(most)]
    return MetricScore(float(metric.corpus_score(list(hypotheses), streams).score), str(metric.get_signature()))


def bleu_by_length(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False
) -> list[LengthGroup]:
    """BLEU of the sentences of each range of source lengths, in words; ranges without a sentence are left out."""
    groups: dict[int, list[int]] = {}
    for row, source in enumerate(sources):
        words = len(source.split())
        groups.setdefault(sum(words > end for end in _LENGTH_BOUNDS), []).append(row)
    found = []
    for group, rows in sorted(groups.items()):
        value = bleu([hypotheses[row] for row in rows], [references[row] for row in rows], lowercase).value
        first = _LENGTH_BOUNDS[group - 1] + 1 if group else 1
        name = f"{first}–{_LENGTH_BOUNDS[group]}" if group < len(_LENGTH_BOUNDS) else f"over {_LENGTH_BOUNDS[-1]}"
        found.append(LengthGroup(name, len(rows), value))
    return found


def compare_systems(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], lowercase: bool = False
) -> list[SystemComparison]:
    """BLEU of several systems side by side, with sacreBLEU's paired bootstrap test of each against the first."""
    if len(systems) < 2:
        raise ValueError(f"a comparison is of at least two systems, not {len(systems)}")
    named: Any = [(name, list(hypotheses)) for name, hypotheses in systems.items()]
    test = PairedTest(
        named, {"BLEU": sacrebleu.BLEU(lowercase=lowercase, force=True)}, [list(references)], test_type="bs"
    )
    results: Any = test()[1]["BLEU"]
    first = named[0][1]
    return [
        SystemComparison(
            name, float(one.score), float(one.mean), float(one.ci), 1.0 if index and written == first else one.p_value
        )
        for index, ((name, written), one) in enumerate(zip(named, results, strict=True))
    ]


# Short sentences have no 4-grams: BLEU goes as far as there are any, or all of them would score nothing.
_SENTENCE_BLEU = sacrebleu.BLEU(effective_order=True, force=True)


def find_nearest_translation(translations: Sequence[str], reference: str) -> int:
    """The place of the translation with the highest sentence BLEU; of equals the first."""
    scores = [_SENTENCE_BLEU.sentence_score(text, [reference]).score for text in translations]
    return scores.index(max(scores))
