"""Elman, GRU and LSTM cells: what they remember over a distance, and how well and fast they translate."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from regard.api import load
from regard.data.files import lines
from regard.reproduce.experiment import Bars, Claim, Experiment, Row, Training, Values
from regard.reproduce.lab import Lab
from regard.reproduce.scales import translator
from regard.reproduce.speed import timed
from regard.reproduce.verdict import alike, less, more

CELLS = ("elman", "gru", "lstm")
CORPORA = {"small": ("adding-30", "copy-8", "simple"), "full": ("adding-100", "copy-20", "multi30k")}
REMEMBERING: dict[str, Any] = {
    "model.network": "rnn",
    "model.size": 32,
    "model.dropout": 0.0,
    "training.patience": None,
    "training.tensorboard": False,
}
STEPS = {"small": 1000, "full": 4000}
ADDING: dict[str, dict[str, Any]] = {
    "small": {"training.batch_tokens": 1500, "training.learning_rate": 0.01},
    "full": {"training.batch_tokens": 5000, "training.learning_rate": 0.01},
}
COPYING: dict[str, dict[str, Any]] = {
    "small": {"training.batch_tokens": 600, "training.learning_rate": 0.02},
    "full": {"training.batch_tokens": 3000, "training.learning_rate": 0.01},
}


def rows(scale: str) -> list[Row]:
    """A row for each cell: it adds, it copies, it translates."""
    adding, copying, text = CORPORA[scale]
    lasting = {**REMEMBERING, "training.steps": STEPS[scale], "training.epochs": None}
    lasting |= {f"training.{name}": STEPS[scale] // 2 for name in ("validate_every", "checkpoint_every")}
    made = []
    for cell in CELLS:
        changes = {**lasting, "model.cell": cell}
        trainings = [
            Training("schuster1997-regression", adding, {**changes, "data.inputs": 2, **ADDING[scale]}),
            Training("schuster1997", copying, {**changes, **COPYING[scale]}),
            translator("bahdanau2015", text, {"model.cell": cell}),
        ]
        made.append(Row(cell, trainings))
    return made


def measure(lab: Lab, row: Row) -> Values:
    """The error of the sum, the share of symbols that were copied, and what is measured of translations."""
    adding, copying, text = row.trainings
    return {
        "error": error(lab, adding),
        "recall": recall(lab, copying),
        **lab.measured(timed, Row(row.name, [text])),
    }


def error(lab: Lab, training: Training) -> float:
    """Root of the mean square error of the last step, where the sum is asked for; 0.41 is that of the mean."""
    told = [[tuple(map(float, row)) for row in rows] for rows in blocks(lab.corpus(training.corpus).test[0])]
    made = load(lab.trained(training)).predict([[row[:2] for row in rows] for rows in told])
    misses = [rows[-1][2] - float(np.asarray(one.outputs)[-1][0]) for rows, one in zip(told, made, strict=True)]
    return float(np.sqrt(np.mean(np.square(misses))))


def recall(lab: Lab, training: Training) -> float:
    """How many in a hundred of the symbols came back."""
    told = blocks(lab.corpus(training.corpus).test[0])
    made = load(lab.trained(training)).predict([[row[0] for row in rows] for rows in told])
    right = [
        row[1] == tag
        for rows, one in zip(told, made, strict=True)
        for row, tag in zip(rows, one.tags, strict=True)
        if row[0] == "say"
    ]
    return 100.0 * float(np.mean(right))


def blocks(path: Path) -> list[list[list[str]]]:
    """The columns of a file, block by block."""
    return [
        [line.split() for line in some] for full, some in groupby(lines(path), lambda line: bool(line.strip())) if full
    ]


CELL = Experiment(
    name="cells",
    title="Elman, GRU and LSTM cells",
    source="Hochreiter & Schmidhuber 1997 (the adding problem); Cho et al. 2014, section 2.3 (a unit simpler than the "
    "LSTM); no figures of theirs are for the same data",
    about="Adding: two marked numbers of 30 (full: 100), error of their sum; copying: 2 symbols over 8 steps of pause "
    "(full: 3 over 20), one in eight is chance; translation: Bahdanau's model with each cell.",
    rows=rows,
    measure=measure,
    timed=True,
    columns=("error", "recall", "bleu", "perplexity", "training_speed", "parameters"),
    claims=(
        Claim("LSTM adds better than Elman", less("error", "lstm", than="elman")),
        Claim("GRU adds better than Elman", less("error", "gru", than="elman")),
        Claim("LSTM copies better than Elman", more("recall", "lstm", than="elman"), "ours"),
        Claim("GRU copies better than Elman", more("recall", "gru", than="elman"), "ours"),
        Claim("GRU translates better than Elman", more("bleu", "gru", than="elman"), "ours"),
        Claim("GRU translates as well as LSTM, within 2 BLEU", alike("bleu", "gru", "lstm", 2.0)),
        Claim("GRU trains faster than LSTM (tokens a second)", more("training_speed", "gru", than="lstm"), "ours"),
    ),
    charts=(Bars("error", "Error of the sum"), Bars("recall", "Symbols copied, %"), Bars("bleu", "BLEU")),
    minutes=4,
)
