"""Experiment: attention scores and alignments of Luong 2015 (tables 4 and 6), in BLEU, perplexity and AER."""

from __future__ import annotations

from regard.reproduce.experiment import BarChart, Claim, Experiment, ExperimentRow, MetricValues, TrainingSpec
from regard.reproduce.metrics import measure_translation, measure_unknown_replacement
from regard.reproduce.presets import make_translation_training
from regard.reproduce.significance import SAME_MODEL_MARGIN, expect_above, expect_higher, expect_lower
from regard.reproduce.workspace import Workspace

# Table 4: perplexity, BLEU, BLEU with unknown words replaced; table 6: AER; the perplexity of concat: footnote 15.
PUBLISHED: dict[tuple[str, str], dict[str, float]] = {
    ("global", "location"): {"perplexity": 6.4, "bleu": 18.1, "replaced": 19.3, "aer": 0.39},
    ("global", "dot"): {"perplexity": 6.1, "bleu": 18.6, "replaced": 20.5},
    ("global", "general"): {"perplexity": 6.1, "bleu": 17.3, "replaced": 19.1},
    ("global", "concat"): {"perplexity": 6.7},
    ("local-m", "dot"): {"perplexity": 7.0},
    ("local-m", "general"): {"perplexity": 6.2, "bleu": 18.6, "replaced": 20.4, "aer": 0.34},
    ("local-p", "dot"): {"perplexity": 6.6, "bleu": 18.0, "replaced": 19.6},
    ("local-p", "general"): {"perplexity": 5.9, "bleu": 19.0, "replaced": 20.9, "aer": 0.36},
}


CORPORA_BY_SCALE = {"small": ("simple",), "full": ("mixed-ende", "mixed-enfr")}


def _build_architecture_rows(scale: str) -> list[ExperimentRow]:
    """Return all rows of table 4; at the full scale with a second run, English–French, for AER."""
    rows = []
    for (alignment, score), published in PUBLISHED.items():
        corpora = CORPORA_BY_SCALE[scale] if "aer" in published else CORPORA_BY_SCALE[scale][:1]
        trainings = [make_luong_training(scale, alignment, score, corpus) for corpus in corpora]
        rows.append(ExperimentRow(f"{alignment} ({score})", trainings, {}, published))
    return rows


def make_luong_training(scale: str, alignment: str, score: str, corpus: str | None = None) -> TrainingSpec:
    """Return the training of Luong's model with a score and an alignment; other experiments share the runs."""
    return make_translation_training(
        f"luong2015-{alignment}", corpus or CORPORA_BY_SCALE[scale][0], {"model.score": score}
    )


def _measure_architecture(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """Measure translation with the first run and AER with the last."""
    values = measure_unknown_replacement(workspace, ExperimentRow(row.name, row.trainings[:1]))
    aligned = workspace.measure_row(measure_translation, ExperimentRow(row.name, row.trainings[-1:]))
    return {**values, "aer": aligned.get("aer"), "gain": values["replaced"] - values["bleu"]}


ARCHITECTURES = Experiment(
    name="architectures",
    title="Attentional architectures",
    source="Luong, Pham & Manning 2015, table 4 (newstest2014), footnote 15 and table 6 (AER on 508 sentences of "
    "Europarl)",
    description="Scores and alignments of one model with input feeding. AER is that of the references, each word "
    "linked to the source word with the highest attention; at the full scale of other models, English to French, on "
    "the Hansards.",
    rows=_build_architecture_rows,
    measure=_measure_architecture,
    columns=("perplexity", "bleu", "replaced", "aer"),
    claims=(
        Claim(
            "dot is better than general for global attention (BLEU)",
            expect_higher("bleu", "global (dot)", than="global (general)"),
        ),
        Claim(
            "general is better than dot for local-m (perplexity)",
            expect_lower("perplexity", "local-m (general)", than="local-m (dot)"),
        ),
        Claim(
            "general is better than dot for local-p (BLEU)",
            expect_higher("bleu", "local-p (general)", than="local-p (dot)"),
        ),
        Claim(
            "local-p (general) has less perplexity than global (general)",
            expect_lower("perplexity", "local-p (general)", than="global (general)"),
        ),
        Claim(
            "local-p (general) is better than global (dot), the best of the others (BLEU)",
            expect_higher("bleu", "local-p (general)", than="global (dot)"),
        ),
        Claim(
            "concat is worse than dot (perplexity)", expect_lower("perplexity", "global (dot)", than="global (concat)")
        ),
        Claim("location is worse than dot (BLEU)", expect_higher("bleu", "global (dot)", than="global (location)")),
        Claim(
            "replacing unknown words helps local-p (general)",
            expect_above("gain", "local-p (general)", SAME_MODEL_MARGIN),
        ),
        Claim(
            "local-p (general) aligns better than global (location)",
            expect_lower("aer", "local-p (general)", than="global (location)"),
        ),
        Claim(
            "local-m (general) aligns better than global (location)",
            expect_lower("aer", "local-m (general)", than="global (location)"),
        ),
    ),
    charts=(BarChart("bleu", "BLEU"), BarChart("perplexity", "perplexity"), BarChart("aer", "AER")),
    cpu_minutes=4.5,
)
