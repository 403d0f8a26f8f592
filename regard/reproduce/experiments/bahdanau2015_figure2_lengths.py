"""Experiment: BLEU by sentence length, of a fixed-length vector and of attention (Bahdanau 2015, figure 2)."""

from __future__ import annotations

from regard.reproduce.experiment import BarChart, Claim, CurveChart, Experiment, ExperimentRow
from regard.reproduce.metrics import measure_translation
from regard.reproduce.presets import make_translation_row
from regard.reproduce.significance import expect_above, expect_below, expect_higher

CORPUS = {"small": "joined", "full": "mixed-ende"}


def _build_length_rows(scale: str) -> list[ExperimentRow]:
    """Return each paper's model with attention and a similar one without."""
    corpus = CORPUS[scale]
    return [
        make_translation_row("cho2014, one vector", "cho2014", corpus, bleu=17.82),
        make_translation_row("bahdanau2015, attention", "bahdanau2015", corpus, bleu=26.75),
        make_translation_row("sutskever2014, one vector", "sutskever2014", corpus),
        make_translation_row("luong2015-global, attention", "luong2015-global", corpus, {"model.score": "dot"}),
    ]


BLEU_BY_LENGTH = Experiment(
    name="lengths",
    title="BLEU by sentence length",
    source="Bahdanau, Cho & Bengio 2015, figure 2 and table 1 (RNNencdec-50, RNNsearch-50: WMT'14 English–French, all "
    "sentences); Luong, Pham & Manning 2015, figure 6",
    description="BLEU of the test sentences of each range of lengths. `long against short` is BLEU of the longest "
    "range divided by that of the shortest. At the small scale a line has one to four sentences.",
    rows=_build_length_rows,
    measure=measure_translation,
    columns=("bleu", "kept", "perplexity"),
    claims=(
        Claim(
            "attention is better than one vector (Bahdanau)",
            expect_higher("bleu", "bahdanau2015, attention", than="cho2014, one vector"),
        ),
        Claim(
            "attention is better than one vector (Luong)",
            expect_higher("bleu", "luong2015-global, attention", than="sutskever2014, one vector"),
        ),
        Claim(
            "with one vector BLEU falls with length, by a fifth or more (Cho's model)",
            expect_below("kept", "cho2014, one vector", 0.8),
            "ours",
        ),
        Claim(
            "with attention BLEU stays above four fifths (Bahdanau)",
            expect_above("kept", "bahdanau2015, attention", 0.8),
            "ours",
        ),
        Claim(
            "attention keeps more on long sentences (Bahdanau)",
            expect_higher("kept", "bahdanau2015, attention", than="cho2014, one vector"),
        ),
        Claim(
            "attention keeps more on long sentences (Luong)",
            expect_higher("kept", "luong2015-global, attention", than="sutskever2014, one vector"),
        ),
    ),
    charts=(CurveChart("by_length", "BLEU by length", "words of the source", "BLEU"), BarChart("bleu", "BLEU of all")),
    cpu_minutes=5,
)
