"""Experiment: key-value attention against one memory for keys and values (Mino 2017)."""

from __future__ import annotations

from regard.reproduce.experiment import BarChart, Claim, Experiment, ExperimentRow
from regard.reproduce.metrics import measure_translation
from regard.reproduce.presets import make_translation_row
from regard.reproduce.significance import expect_higher, expect_lower

CORPUS = {"small": "simple", "full": "multi30k"}


def _build_key_value_rows(scale: str) -> list[ExperimentRow]:
    """Return one decoder over three kinds of memory."""
    corpus = CORPUS[scale]
    return [
        make_translation_row("one memory", "bahdanau2015", corpus),
        make_translation_row("keys and values, split", "mino2017", corpus),
        make_translation_row("keys and values, separate", "mino2017", corpus, {"model.key_value": "separate"}),
    ]


KEY_VALUE = Experiment(
    name="key-value",
    title="Key-value attention",
    source="Mino, Utiyama, Sumita & Tokunaga 2017, abstract: keys and values apart outperform conventional attention "
    "in three tasks; their figures are not available here",
    description="Bahdanau's decoder over his annotations; over one projection of them, split into keys and values; "
    "over two projections.",
    rows=_build_key_value_rows,
    measure=measure_translation,
    columns=("perplexity", "bleu", "aer", "entropy", "parameters"),
    claims=(
        Claim(
            "split keys and values are better than one memory (BLEU)",
            expect_higher("bleu", "keys and values, split", than="one memory"),
        ),
        Claim(
            "separate keys and values are better than one memory (BLEU)",
            expect_higher("bleu", "keys and values, separate", than="one memory"),
        ),
        Claim(
            "split keys and values have less perplexity than one memory",
            expect_lower("perplexity", "keys and values, split", than="one memory"),
        ),
    ),
    charts=(BarChart("bleu", "BLEU"), BarChart("perplexity", "perplexity")),
    cpu_minutes=2.5,
)
