"""Key-value attention against one memory for both."""

from __future__ import annotations

from regard.reproduce.experiment import Bars, Claim, Experiment, Row
from regard.reproduce.measures import translation
from regard.reproduce.scales import translator
from regard.reproduce.verdict import less, more

CORPUS = {"small": "simple", "full": "multi30k"}


def rows(scale: str) -> list[Row]:
    """One decoder over three memories."""
    corpus = CORPUS[scale]
    return [
        Row("one memory", [translator("bahdanau2015", corpus)]),
        Row("keys and values, split", [translator("mino2017", corpus)]),
        Row("keys and values, separate", [translator("mino2017", corpus, {"model.key_value": "separate"})]),
    ]


KEY_VALUE = Experiment(
    name="key-value",
    title="Key-value attention",
    source="Mino, Utiyama, Sumita & Tokunaga 2017, abstract: keys and values apart outperform conventional attention "
    "in three tasks; their figures are not at hand",
    about="Bahdanau's decoder over his annotations; over one projection of them cut into keys and values; over two.",
    rows=rows,
    measure=translation,
    columns=("perplexity", "bleu", "aer", "entropy", "parameters"),
    claims=(
        Claim(
            "split keys and values are better than one memory (BLEU)",
            more("bleu", "keys and values, split", than="one memory"),
        ),
        Claim(
            "separate keys and values are better than one memory (BLEU)",
            more("bleu", "keys and values, separate", than="one memory"),
        ),
        Claim(
            "split keys and values have less perplexity than one memory",
            less("perplexity", "keys and values, split", than="one memory"),
        ),
    ),
    charts=(Bars("bleu", "BLEU"), Bars("perplexity", "perplexity")),
    minutes=2.5,
)
