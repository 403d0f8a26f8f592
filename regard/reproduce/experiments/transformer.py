"""The Transformer against recurrent models, and what it makes of positions."""

from __future__ import annotations

from regard.reproduce.experiment import Bars, Claim, Experiment, Row
from regard.reproduce.scales import translator
from regard.reproduce.speed import timed
from regard.reproduce.verdict import alike, more

CORPUS = {"small": "simple", "full": "multi30k"}
PUBLISHED = {"sinusoidal": {"perplexity": 4.92, "bleu": 25.8}, "learned": {"perplexity": 4.92, "bleu": 25.7}}


def rows(scale: str) -> list[Row]:
    """Three kinds of positions; and two recurrent models."""
    corpus = CORPUS[scale]
    positions = {
        "sinusoidal": translator("vaswani2017-base", corpus),
        "learned": translator("vaswani2017-base", corpus, {"model.positions": "learned"}),
        "none": translator("vaswani2017-base", corpus, {"model.positions": "none"}),
    }
    return [
        *(Row(f"Transformer, {name}", [one], {}, PUBLISHED.get(name, {})) for name, one in positions.items()),
        Row("bahdanau2015", [translator("bahdanau2015", corpus)]),
        Row("luong2015-global", [translator("luong2015-global", corpus, {"model.score": "dot"})]),
    ]


TRANSFORMER = Experiment(
    name="transformer",
    title="Transformer against RNN",
    source="Vaswani et al. 2017, table 3, base and row E (newstest2013, the paper's figures here); table 2: 27.3 BLEU "
    "on newstest2014 against 24.6 of a deep recurrent model, at a seventh of its training cost",
    about="Models of the same width, trained with as many updates on as many tokens. The Transformer has more layers "
    "(small: 2 against 1, full: 4 against 1), a learning rate of its own, and pre-norm in the place of the paper's "
    "post-norm.",
    rows=rows,
    measure=timed,
    timed=True,
    columns=("perplexity", "bleu", "aer", "training_speed", "decoding_speed", "parameters"),
    claims=(
        Claim(
            "the Transformer is better than a recurrent model (BLEU, Bahdanau's)",
            more("bleu", "Transformer, sinusoidal", than="bahdanau2015"),
        ),
        Claim(
            "the Transformer is better than a recurrent model (BLEU, Luong's)",
            more("bleu", "Transformer, sinusoidal", than="luong2015-global"),
        ),
        Claim(
            "it trains faster (tokens a second, against Bahdanau's)",
            more("training_speed", "Transformer, sinusoidal", than="bahdanau2015"),
        ),
        Claim(
            "learned positions are as good as sinusoids, within 1 BLEU",
            alike("bleu", "Transformer, learned", "Transformer, sinusoidal", 1.0),
        ),
        Claim("without positions it is worse", more("bleu", "Transformer, sinusoidal", than="Transformer, none")),
    ),
    charts=(
        Bars("bleu", "BLEU"),
        Bars("training_speed", "Tokens a second in training"),
        Bars("decoding_speed", "Words a second in decoding"),
    ),
    minutes=3.5,
)
