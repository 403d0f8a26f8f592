"""BLEU by sentence length: what a fixed vector cannot hold, attention looks up."""

from __future__ import annotations

from regard.reproduce.experiment import Bars, Claim, Curves, Experiment, Row
from regard.reproduce.measures import translation
from regard.reproduce.scales import translator
from regard.reproduce.verdict import more, over, under

CORPUS = {"small": "joined", "full": "mixed-ende"}


def rows(scale: str) -> list[Row]:
    """Each paper's model beside one of its kind without attention."""
    corpus = CORPUS[scale]
    return [
        Row("cho2014, one vector", [translator("cho2014", corpus)], {}, {"bleu": 17.82}),
        Row("bahdanau2015, attention", [translator("bahdanau2015", corpus)], {}, {"bleu": 26.75}),
        Row("sutskever2014, one vector", [translator("sutskever2014", corpus)]),
        Row("luong2015-global, attention", [translator("luong2015-global", corpus, {"model.score": "dot"})]),
    ]


LENGTHS = Experiment(
    name="lengths",
    title="BLEU by sentence length",
    source="Bahdanau, Cho & Bengio 2015, figure 2 and table 1 (RNNencdec-50, RNNsearch-50: WMT'14 English–French, all "
    "sentences); Luong, Pham & Manning 2015, figure 6",
    about="BLEU of the test sentences of each range of lengths. `long against short` is BLEU of the longest range as "
    "a share of that of the shortest. At the small scale a line has one to four sentences.",
    rows=rows,
    measure=translation,
    columns=("bleu", "kept", "perplexity"),
    claims=(
        Claim(
            "attention is better than one vector (Bahdanau)",
            more("bleu", "bahdanau2015, attention", than="cho2014, one vector"),
        ),
        Claim(
            "attention is better than one vector (Luong)",
            more("bleu", "luong2015-global, attention", than="sutskever2014, one vector"),
        ),
        Claim(
            "with one vector BLEU falls with length, by a fifth or more (Cho's model)",
            under("kept", "cho2014, one vector", 0.8),
            "ours",
        ),
        Claim(
            "with attention BLEU stays above four fifths (Bahdanau)",
            over("kept", "bahdanau2015, attention", 0.8),
            "ours",
        ),
        Claim(
            "attention keeps more on long sentences (Bahdanau)",
            more("kept", "bahdanau2015, attention", than="cho2014, one vector"),
        ),
        Claim(
            "attention keeps more on long sentences (Luong)",
            more("kept", "luong2015-global, attention", than="sutskever2014, one vector"),
        ),
    ),
    charts=(Curves("by_length", "BLEU by length", "words of the source", "BLEU"), Bars("bleu", "BLEU of all")),
    minutes=5,
)
