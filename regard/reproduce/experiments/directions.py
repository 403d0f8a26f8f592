"""Directions and windows: which network sees what its answer depends on."""

from __future__ import annotations

from typing import Any

from regard.reproduce.experiment import Bars, Claim, Experiment, Row, Training, Values
from regard.reproduce.lab import Lab
from regard.reproduce.measures import evaluated
from regard.reproduce.verdict import more
from regard.tasks.regression.embedded import SMALL as SERIES
from regard.tasks.tagging.embedded import SMALL as SENTENCES

NETWORKS: dict[str, dict[str, Any]] = {
    "mlp, window 2": {"model.network": "mlp"},
    "tdnn, window 2 in 2 layers": {"model.network": "tdnn", "model.layers": 2},
    "rnn": {"model.network": "rnn"},
    "rnn, delay 4": {"model.network": "rnn", "model.delay": 4},
    "brnn": {"model.network": "brnn"},
}
QUICK = {"training.patience": None, "training.epochs": None, "training.tensorboard": False}
SHORT = {"training.steps": 300}


def rows(scale: str) -> list[Row]:
    """Each network tags words and follows numbers."""
    made = []
    for name, changes in NETWORKS.items():
        series = {**SERIES, **QUICK, **(SHORT if scale == "small" else {}), **changes}
        tags = {**SENTENCES, **QUICK, **changes} if scale == "small" else changes
        corpus = "sentences" if scale == "small" else "ud-english-ewt"
        trainings = [Training("schuster1997", corpus, tags), Training("schuster1997-regression", "series", series)]
        made.append(Row(name, trainings))
    return made


def measure(lab: Lab, row: Row) -> Values:
    """Accuracy of the tags, R² of the numbers."""
    tags, series = (evaluated(lab, training) for training in row.trainings)
    return {"accuracy": tags["accuracy"], "r2": series["r2"]}


def both(row: str, than: str) -> list[Claim]:
    """One claim for each task."""
    return [
        Claim(f"{row} tags better than {than}", more("accuracy", row, than)),
        Claim(f"{row} follows numbers better than {than} (R²)", more("r2", row, than)),
    ]


DIRECTIONS = Experiment(
    name="directions",
    title="Directions and windows",
    source="Schuster & Paliwal 1997: regression and classification on artificial data; their figures are not at hand",
    about="What the answer depends on lies on both sides: sentences whose verbs depend on the first word and the last "
    "mark (full: parts of speech of UD English EWT), and numbers that are sums of ten before and twenty behind. The "
    "windows and the delay are shorter than that: they show what a network that sees less has to do without.",
    rows=rows,
    measure=measure,
    columns=("accuracy", "r2"),
    claims=(
        *both("brnn", "rnn"),
        *both("brnn", "rnn, delay 4"),
        *both("rnn, delay 4", "rnn"),
        *both("brnn", "mlp, window 2"),
        *both("brnn", "tdnn, window 2 in 2 layers"),
    ),
    charts=(Bars("accuracy", "Accuracy of tags, %"), Bars("r2", "R² of numbers")),
    minutes=2,
)
