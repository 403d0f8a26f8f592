"""Experiment: the Transformer and its positional encodings against recurrent models (Vaswani 2017, tables 2 and 3)."""

from __future__ import annotations

from regard.reproduce.experiment import BarChart, Claim, Experiment, ExperimentRow
from regard.reproduce.presets import make_translation_row
from regard.reproduce.significance import expect_higher, expect_similar
from regard.reproduce.throughput import measure_translation_and_speed

CORPUS = {"small": "simple", "full": "multi30k"}


def _build_transformer_rows(scale: str) -> list[ExperimentRow]:
    """Return the rows: three positional encodings, and two recurrent models."""
    transformer, corpus = "vaswani2017-base", CORPUS[scale]
    learned, none = {"model.positions": "learned"}, {"model.positions": "none"}
    return [
        make_translation_row("Transformer, sinusoidal", transformer, corpus, perplexity=4.92, bleu=25.8),
        make_translation_row("Transformer, learned", transformer, corpus, learned, perplexity=4.92, bleu=25.7),
        make_translation_row("Transformer, none", transformer, corpus, none),
        make_translation_row("bahdanau2015", "bahdanau2015", corpus),
        make_translation_row("luong2015-global", "luong2015-global", corpus, {"model.score": "dot"}),
    ]


TRANSFORMER = Experiment(
    name="transformer",
    title="Transformer against RNN",
    source="Vaswani et al. 2017, table 3, base and row E (newstest2013, the paper's figures here); table 2: 27.3 BLEU "
    "on newstest2014 against 24.6 of a deep recurrent model, at a seventh of its training cost",
    description="Models of the same size, trained for the same number of updates and tokens. The Transformer has more "
    "layers (small: 2 against 1, full: 4 against 1), its own learning rate, and pre-norm instead of the paper's "
    "post-norm.",
    rows=_build_transformer_rows,
    measure=measure_translation_and_speed,
    measures_time=True,
    columns=("perplexity", "bleu", "aer", "training_speed", "decoding_speed", "parameters"),
    claims=(
        Claim(
            "the Transformer is better than a recurrent model (BLEU, Bahdanau's)",
            expect_higher("bleu", "Transformer, sinusoidal", than="bahdanau2015"),
        ),
        Claim(
            "the Transformer is better than a recurrent model (BLEU, Luong's)",
            expect_higher("bleu", "Transformer, sinusoidal", than="luong2015-global"),
        ),
        Claim(
            "it trains faster (tokens a second, against Bahdanau's)",
            expect_higher("training_speed", "Transformer, sinusoidal", than="bahdanau2015"),
        ),
        Claim(
            "learned positions are as good as sinusoids, within 1 BLEU",
            expect_similar("bleu", "Transformer, learned", "Transformer, sinusoidal", 1.0),
        ),
        Claim(
            "without positions it is worse", expect_higher("bleu", "Transformer, sinusoidal", than="Transformer, none")
        ),
    ),
    charts=(
        BarChart("bleu", "BLEU"),
        BarChart("training_speed", "Tokens a second in training"),
        BarChart("decoding_speed", "Words a second in decoding"),
    ),
    cpu_minutes=3.5,
)
