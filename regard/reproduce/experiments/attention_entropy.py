"""Experiment: is attention sparse? Entropy, and the fraction of negligible weights, for each mechanism."""

from __future__ import annotations

from regard.reproduce.experiment import BarChart, Claim, Experiment, ExperimentRow
from regard.reproduce.experiments.luong2015_table4_architectures import make_luong_training
from regard.reproduce.metrics import measure_translation
from regard.reproduce.presets import make_translation_row
from regard.reproduce.significance import expect_above, expect_higher, expect_lower

CORPUS = {"small": "simple", "full": "mixed-ende"}
LUONG_VARIANTS = (
    ("global", "dot"),
    ("global", "general"),
    ("global", "concat"),
    ("global", "location"),
    ("local-m", "general"),
    ("local-p", "general"),
)


def _build_sparsity_rows(scale: str) -> list[ExperimentRow]:
    """Return the runs of other experiments, measured for sparsity."""
    corpus = CORPUS[scale]
    return [
        *(
            ExperimentRow(f"{alignment} ({score})", [make_luong_training(scale, alignment, score)])
            for alignment, score in LUONG_VARIANTS
        ),
        *(make_translation_row(name, name, corpus) for name in ("bahdanau2015", "xu2015-soft", "vaswani2017-base")),
    ]


CONTENT_BASED_ROWS = (
    "global (dot)",
    "global (general)",
    "global (concat)",
    "bahdanau2015",
    "xu2015-soft",
    "vaswani2017-base",
)
ATTENTION_SPARSITY = Experiment(
    name="sparse",
    title="Is attention sparse?",
    source="asked of Bahdanau 2015 (figure 3), Luong 2015 (figure 7) and Vaswani 2017: the pictures look sparse, no "
    "figure is given; a softmax never gives a zero",
    description="Attention weights of the references' words over the source, with EOS. Outside of a window, weights "
    "are 0; those of a Transformer are the mean over the heads of its last layer.",
    rows=_build_sparsity_rows,
    measure=measure_translation,
    columns=("entropy", "faint", "bleu", "aer"),
    claims=(
        *(
            Claim(f"{name}: more than half of the weights are under 0.01", expect_above("faint", name, 0.5), "ours")
            for name in CONTENT_BASED_ROWS
        ),
        Claim(
            "location attends less sharply than dot (entropy)",
            expect_higher("entropy", "global (location)", than="global (dot)"),
            "ours",
        ),
        Claim(
            "a window makes attention sharper: local-p against global, general (entropy)",
            expect_lower("entropy", "local-p (general)", than="global (general)"),
            "ours",
        ),
    ),
    charts=(
        BarChart("entropy", "Entropy of a word's weights, nats"),
        BarChart("faint", "Fraction of weights under 0.01"),
    ),
    cpu_minutes=5,
)
