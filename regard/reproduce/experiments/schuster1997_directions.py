"""Experiment: bidirectional networks, delays and windows (Schuster & Paliwal 1997), in tagging and regression."""

from __future__ import annotations

from typing import Any

from regard.reproduce.experiment import BarChart, Claim, Experiment, ExperimentRow, MetricValues, TrainingSpec
from regard.reproduce.metrics import evaluate_on_test_set
from regard.reproduce.significance import expect_higher
from regard.reproduce.workspace import Workspace
from regard.synthetic.regression import SMALL_MODEL_OVERRIDES as SERIES
from regard.synthetic.tagging import SMALL_MODEL_OVERRIDES as SENTENCES

NETWORKS: dict[str, dict[str, Any]] = {
    "mlp, window 2": {"model.network": "mlp"},
    "tdnn, window 2 in 2 layers": {"model.network": "tdnn", "model.layers": 2},
    "rnn": {"model.network": "rnn"},
    "rnn, delay 4": {"model.network": "rnn", "model.delay": 4},
    "brnn": {"model.network": "brnn"},
}
TRAINING_OVERRIDES = {"training.patience": None, "training.epochs": None, "training.tensorboard": False}
SMALL_SCALE_STEPS = {"training.steps": 300}


def _build_direction_rows(scale: str) -> list[ExperimentRow]:
    """Return a row for each network, with a tagging and a regression run."""
    rows = []
    for name, changes in NETWORKS.items():
        series = {**SERIES, **TRAINING_OVERRIDES, **(SMALL_SCALE_STEPS if scale == "small" else {}), **changes}
        tags = {**SENTENCES, **TRAINING_OVERRIDES, **changes} if scale == "small" else changes
        corpus = "sentences" if scale == "small" else "ud-english-ewt"
        trainings = [
            TrainingSpec("schuster1997", corpus, tags),
            TrainingSpec("schuster1997-regression", "series", series),
        ]
        rows.append(ExperimentRow(name, trainings))
    return rows


def _measure_direction(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """Measure the accuracy of the tags and R² of the regression."""
    tags, series = (evaluate_on_test_set(workspace, training) for training in row.trainings)
    return {"accuracy": tags["accuracy"], "r2": series["r2"]}


def _make_task_claims(row: str, than: str) -> list[Claim]:
    """Build one claim for each task."""
    return [
        Claim(f"{row} tags better than {than}", expect_higher("accuracy", row, than)),
        Claim(f"{row} follows numbers better than {than} (R²)", expect_higher("r2", row, than)),
    ]


DIRECTIONS = Experiment(
    name="directions",
    title="Directions and windows",
    source="Schuster & Paliwal 1997: regression and classification on artificial data; their figures are not "
    "available here",
    description="The targets depend on context on both sides: verb tags depend on the first word and the last mark of "
    "a sentence (full: parts of speech of UD English EWT), and numbers are sums over ten steps before and twenty "
    "after. The windows and the delay are shorter than that, to show the effect of missing context.",
    rows=_build_direction_rows,
    measure=_measure_direction,
    columns=("accuracy", "r2"),
    claims=(
        *_make_task_claims("brnn", "rnn"),
        *_make_task_claims("brnn", "rnn, delay 4"),
        *_make_task_claims("rnn, delay 4", "rnn"),
        *_make_task_claims("brnn", "mlp, window 2"),
        *_make_task_claims("brnn", "tdnn, window 2 in 2 layers"),
    ),
    charts=(BarChart("accuracy", "Accuracy of tags, %"), BarChart("r2", "R² of numbers")),
    cpu_minutes=2,
)
