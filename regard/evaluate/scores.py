"""Scores of translations, by sacreBLEU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sacrebleu
from sacrebleu.significance import PairedTest

from regard.console import say
from regard.data.scripts import has_spaces

LENGTHS = (10, 20, 30, 40, 50)  # words of a source at which one group of sentences ends and the next begins

Metric = sacrebleu.BLEU | sacrebleu.CHRF | sacrebleu.TER


class Score(NamedTuple):
    """A figure, and the signature that says how it was computed."""

    value: float
    signature: str


class Group(NamedTuple):
    """The sentences of some length, and their BLEU."""

    words: str
    pairs: int
    bleu: float


class Compared(NamedTuple):
    """One system of several: its score, the 95 % interval of its mean, and how likely chance made the gap."""

    name: str
    value: float
    mean: float
    interval: float
    p: float | None  # None: the first system, which the others are held against


def bleu(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> Score:
    """Corpus BLEU with sacreBLEU's usual settings; `force` spares its warning about tokenised text."""
    return measured(sacrebleu.BLEU(lowercase=lowercase, force=True), hypotheses, references)


def bleu_of_several(hypotheses: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool = False) -> Score:
    """The same where each may have several references, one at the least, and not all as many."""
    return _measure_several(sacrebleu.BLEU(lowercase=lowercase, force=True), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> Score:
    """Corpus chrF2."""
    return measured(sacrebleu.CHRF(lowercase=lowercase), hypotheses, references)


def chrf_of_several(hypotheses: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool = False) -> Score:
    """Corpus chrF2 where each may have several references, one at the least, and not all as many."""
    return _measure_several(sacrebleu.CHRF(lowercase=lowercase), hypotheses, references)


def ter(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus TER: edits per word of the references, in percent, the fewer the better.

    Letters' case never counts, and punctuation is a word of its own wherever it is written.
    """
    return measured(sacrebleu.TER(normalized=True), hypotheses, references)


def warn_about_bleu(references: Sequence[str], language: str | None = None) -> None:
    """Write a warning if the references have no spaces between words, so that BLEU counts no words."""
    if not has_spaces("".join(references), language):
        say("warning: the target language has no spaces between words: BLEU (tok:13a) is meaningless, compare chrF")


def measured(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """One of sacreBLEU's metrics over a corpus."""
    if not hypotheses or len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references; each needs one")
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score(float(value), str(metric.get_signature()))


def _measure_several(metric: Metric, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    if not hypotheses or len(hypotheses) != len(references) or not all(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} lists of references; each needs one")
    most = max(map(len, references))
    streams: Any = [[some[n] if n < len(some) else None for some in references] for n in range(most)]
    return Score(float(metric.corpus_score(list(hypotheses), streams).score), str(metric.get_signature()))


def by_length(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False
) -> list[Group]:
    """BLEU of the sentences of each range of source lengths, in words; ranges without a sentence are left out."""
    groups: dict[int, list[int]] = {}
    for row, source in enumerate(sources):
        words = len(source.split())
        groups.setdefault(sum(words > end for end in LENGTHS), []).append(row)
    found = []
    for group, rows in sorted(groups.items()):
        value = bleu([hypotheses[row] for row in rows], [references[row] for row in rows], lowercase).value
        first = LENGTHS[group - 1] + 1 if group else 1
        name = f"{first}–{LENGTHS[group]}" if group < len(LENGTHS) else f"over {LENGTHS[-1]}"
        found.append(Group(name, len(rows), value))
    return found


def compare(systems: Mapping[str, Sequence[str]], references: Sequence[str], lowercase: bool = False) -> list[Compared]:
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
        Compared(
            name, float(one.score), float(one.mean), float(one.ci), 1.0 if place and written == first else one.p_value
        )
        for place, ((name, written), one) in enumerate(zip(named, results, strict=True))
    ]
