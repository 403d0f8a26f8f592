"""Translation metrics by sacreBLEU: BLEU, chrF, TER, BLEU by sentence length, and paired bootstrap tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import sacrebleu
from sacrebleu.significance import PairedTest

from regard.console import log_message
from regard.data.languages import has_spaces

References = Sequence[str] | Sequence[Sequence[str]]  # for each hypothesis one, or several; their number may differ

_LENGTH_BOUNDS = (10, 20, 30, 40, 50)  # longest source, in words, of each group of sentences


class MetricScore(NamedTuple):
    """A score, and the sacreBLEU signature that says how it was computed."""

    value: float
    signature: str


class LengthGroup(NamedTuple):
    """Sentences in a range of source lengths, and their BLEU."""

    words: str
    pairs: int
    bleu: float


class TranslationScores(NamedTuple):
    """All metrics of a system's translations of one test set."""

    bleu: MetricScore
    chrf: MetricScore
    ter: MetricScore
    by_length: list[LengthGroup]


class SystemComparison(NamedTuple):
    """One of several systems: its BLEU, bootstrap mean with 95 % confidence interval, and p-value against the first."""

    name: str
    value: float
    mean: float
    interval: float
    p_value: float | None  # None for the first system, the baseline


def bleu(hypotheses: Sequence[str], references: References, lowercase: bool = False) -> MetricScore:
    """Return corpus BLEU with sacreBLEU's default settings."""
    return _score_corpus(_make_bleu(lowercase), hypotheses, references)


def _make_bleu(lowercase: bool) -> sacrebleu.BLEU:
    return sacrebleu.BLEU(lowercase=lowercase, force=True)  # `force`: no warning about text that looks tokenized


def chrf(hypotheses: Sequence[str], references: References, lowercase: bool = False) -> MetricScore:
    """Return corpus chrF2."""
    return _score_corpus(sacrebleu.CHRF(lowercase=lowercase), hypotheses, references)


def ter(hypotheses: Sequence[str], references: References) -> MetricScore:
    """Return corpus TER: edits per word of the references, in percent; lower is better.

    Case is ignored, and punctuation marks are words of their own, whether or not spaces separate them.
    """
    return _score_corpus(sacrebleu.TER(normalized=True), hypotheses, references)


def warn_about_bleu(references: References, language: str | None = None) -> None:
    """Log a warning if the references have no spaces between words, so that BLEU cannot count words."""
    if choose_selection_metric(references, language) != "bleu":
        log_message(
            "warning: the target language has no spaces between words: BLEU (tok:13a) is meaningless, compare chrF"
        )


def _score_corpus(
    metric: sacrebleu.BLEU | sacrebleu.CHRF | sacrebleu.TER, hypotheses: Sequence[str], references: References
) -> MetricScore:
    listed = [[texts] if isinstance(texts, str) else texts for texts in references]
    if not hypotheses or len(hypotheses) != len(listed) or not all(listed):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(listed)} references; each needs one")
    streams: Any = list(zip_longest(*listed))  # the first reference of each hypothesis, then the second ones
    return MetricScore(float(metric.corpus_score(list(hypotheses), streams).score), str(metric.get_signature()))


def bleu_by_length(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False
) -> list[LengthGroup]:
    """Return BLEU for each range of source lengths, in words; ranges without sentences are left out."""
    groups: dict[int, list[int]] = {}
    for row, source in enumerate(sources):
        words = len(source.split())
        groups.setdefault(sum(words > end for end in _LENGTH_BOUNDS), []).append(row)
    results = []
    for group, rows in sorted(groups.items()):
        value = bleu([hypotheses[row] for row in rows], [references[row] for row in rows], lowercase).value
        first = _LENGTH_BOUNDS[group - 1] + 1 if group else 1
        name = f"{first}–{_LENGTH_BOUNDS[group]}" if group < len(_LENGTH_BOUNDS) else f"over {_LENGTH_BOUNDS[-1]}"
        results.append(LengthGroup(name, len(rows), value))
    return results


def score_translations(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False
) -> TranslationScores:
    """Return BLEU, chrF and TER of translations, and BLEU by source length."""
    return TranslationScores(
        bleu(hypotheses, references, lowercase),
        chrf(hypotheses, references, lowercase),
        ter(hypotheses, references),
        bleu_by_length(sources, hypotheses, references, lowercase),
    )


def compare_systems(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], lowercase: bool = False
) -> list[SystemComparison]:
    """Return BLEU of several systems, with sacreBLEU's paired bootstrap test of each against the first."""
    if len(systems) < 2:
        raise ValueError(f"a comparison needs at least two systems, not {len(systems)}")
    named: Any = [(name, list(hypotheses)) for name, hypotheses in systems.items()]
    results: Any = PairedTest(named, {"BLEU": _make_bleu(lowercase)}, [list(references)], test_type="bs")()[1]["BLEU"]
    baseline = named[0][1]
    return [
        SystemComparison(
            name,
            float(result.score),
            float(result.mean),
            float(result.ci),
            1.0 if index and hypotheses == baseline else result.p_value,
        )
        for index, ((name, hypotheses), result) in enumerate(zip(named, results, strict=True))
    ]


# Short sentences have no 4-grams: `effective_order` uses only the n-gram orders that occur; otherwise BLEU would be 0.
_SENTENCE_BLEU = sacrebleu.BLEU(effective_order=True, force=True)


def find_nearest_translation(translations: Sequence[str], reference: str) -> int:
    """Return the index of the translation with the highest sentence BLEU; the first one if several are equal."""
    scores = [_SENTENCE_BLEU.sentence_score(text, [reference]).score for text in translations]
    return scores.index(max(scores))


def choose_selection_metric(references: References, language: str | None = None) -> str:
    """Return the metric that chooses the best checkpoint: `bleu`, or `chrf` for scripts without spaces.

    BLEU counts words between spaces: in Chinese, Japanese, Thai and others it is 0 or random.
    """
    return "bleu" if has_spaces("".join(chain.from_iterable(references)), language) else "chrf"


def score_texts(
    texts: Sequence[str], references: References, selection_metric: str, lowercase: bool
) -> dict[str, float]:
    """Return BLEU, and chrF if that is the selection metric."""
    scores = {"bleu": bleu} | ({"chrf": chrf} if selection_metric == "chrf" else {})
    return {name: score(texts, references, lowercase).value for name, score in scores.items()}


def report_selection_metric(selection_metric: str, best: str) -> None:
    """Log a line if chrF chooses the best checkpoint; `best` is the setting `training.best`."""
    if selection_metric == "chrf" and best != "loss":
        log_message("the target language has no spaces between words: chrF, not BLEU, chooses the best checkpoint")
