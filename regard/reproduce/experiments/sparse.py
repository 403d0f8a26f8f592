"""Is attention sparse? Entropy, and the share of weights that are as good as none, for each mechanism."""

from __future__ import annotations

from regard.reproduce.experiment import Bars, Claim, Experiment, Row
from regard.reproduce.experiments.architectures import attentive
from regard.reproduce.measures import translation
from regard.reproduce.scales import translator
from regard.reproduce.verdict import less, more, over

CORPUS = {"small": "simple", "full": "mixed-ende"}
LUONG = (
    ("global", "dot"),
    ("global", "general"),
    ("global", "concat"),
    ("global", "location"),
    ("local-m", "general"),
    ("local-p", "general"),
)


def rows(scale: str) -> list[Row]:
    """The runs of other experiments, looked at in another way."""
    corpus = CORPUS[scale]
    return [
        *(Row(f"{alignment} ({score})", [attentive(scale, alignment, score)]) for alignment, score in LUONG),
        *(Row(name, [translator(name, corpus)]) for name in ("bahdanau2015", "xu2015-soft", "vaswani2017-base")),
    ]


CONTENT = ("global (dot)", "global (general)", "global (concat)", "bahdanau2015", "xu2015-soft", "vaswani2017-base")
SPARSE = Experiment(
    name="sparse",
    title="Is attention sparse?",
    source="asked of Bahdanau 2015 (figure 3), Luong 2015 (figure 7) and Vaswani 2017: the pictures look sparse, no "
    "figure is given; a softmax never gives a zero",
    about="Weights of the references' words over the source, its end included. Outside a window weights are 0; those "
    "of a Transformer are its last layer's, mean of the heads.",
    rows=rows,
    measure=translation,
    columns=("entropy", "faint", "bleu", "aer"),
    claims=(
        *(
            Claim(f"{name}: more than half of the weights are under 0.01", over("faint", name, 0.5), "ours")
            for name in CONTENT
        ),
        Claim(
            "location looks less sharply than dot (entropy)",
            more("entropy", "global (location)", than="global (dot)"),
            "ours",
        ),
        Claim(
            "a window makes attention sharper: local-p against global, general (entropy)",
            less("entropy", "local-p (general)", than="global (general)"),
            "ours",
        ),
    ),
    charts=(Bars("entropy", "Entropy of a word's weights, nats"), Bars("faint", "Share of weights under 0.01")),
    minutes=5,
)
