"""Experiment: Elman, GRU and LSTM cells: long-range memory, translation quality and speed (Cho 2014)."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from regard.api import load
from regard.data.readers.text import iterate_lines
from regard.reproduce.experiment import BarChart, Claim, Experiment, ExperimentRow, MetricValues, TrainingSpec
from regard.reproduce.presets import make_translation_training
from regard.reproduce.significance import expect_higher, expect_lower, expect_similar
from regard.reproduce.throughput import measure_translation_and_speed
from regard.reproduce.workspace import Workspace

CELLS = ("elman", "gru", "lstm")
CORPORA_BY_SCALE = {"small": ("adding-30", "copy-8", "simple"), "full": ("adding-100", "copy-20", "multi30k")}
MEMORY_TASK_OVERRIDES: dict[str, Any] = {
    "model.network": "rnn",
    "model.size": 32,
    "model.dropout": 0.0,
    "training.patience": None,
    "training.tensorboard": False,
}
TRAINING_STEPS = {"small": 1000, "full": 4000}
ADDING_TASK_OVERRIDES: dict[str, dict[str, Any]] = {
    "small": {"training.batch_tokens": 1500, "training.learning_rate": 0.01},
    "full": {"training.batch_tokens": 5000, "training.learning_rate": 0.01},
}
COPY_TASK_OVERRIDES: dict[str, dict[str, Any]] = {
    "small": {"training.batch_tokens": 600, "training.learning_rate": 0.02},
    "full": {"training.batch_tokens": 3000, "training.learning_rate": 0.01},
}


def _build_cell_rows(scale: str) -> list[ExperimentRow]:
    """Return a row for each cell, with an adding, a copying and a translation run."""
    adding, copying, text = CORPORA_BY_SCALE[scale]
    shared = {**MEMORY_TASK_OVERRIDES, "training.steps": TRAINING_STEPS[scale], "training.epochs": None}
    shared |= {f"training.{name}": TRAINING_STEPS[scale] // 2 for name in ("validate_every", "checkpoint_every")}
    rows = []
    for cell in CELLS:
        changes = {**shared, "model.cell": cell}
        trainings = [
            TrainingSpec(
                "schuster1997-regression", adding, {**changes, "data.inputs": 2, **ADDING_TASK_OVERRIDES[scale]}
            ),
            TrainingSpec("schuster1997", copying, {**changes, **COPY_TASK_OVERRIDES[scale]}),
            make_translation_training("bahdanau2015", text, {"model.cell": cell}),
        ]
        rows.append(ExperimentRow(cell, trainings))
    return rows


def _measure_cell(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """Measure the error of the sum, the recall of copied symbols, and translation with speed."""
    adding, copying, text = row.trainings
    return {
        "error": _measure_adding_error(workspace, adding),
        "recall": _measure_copy_recall(workspace, copying),
        **workspace.measure_row(measure_translation_and_speed, ExperimentRow(row.name, [text])),
    }


def _measure_adding_error(workspace: Workspace, training: TrainingSpec) -> float:
    """Return the RMSE at the last step, whose target is the sum; 0.41 is that of the mean."""
    series = [
        [tuple(map(float, row)) for row in rows] for rows in _read_blocks(workspace.get_corpus(training.corpus).test[0])
    ]
    predictions = load(workspace.train_or_resume(training)).predict([[row[:2] for row in rows] for rows in series])
    errors = [
        rows[-1][2] - float(np.asarray(prediction.outputs)[-1][0])
        for rows, prediction in zip(series, predictions, strict=True)
    ]
    return float(np.sqrt(np.mean(np.square(errors))))


def _measure_copy_recall(workspace: Workspace, training: TrainingSpec) -> float:
    """Return the percentage of symbols that were copied correctly."""
    sentences = _read_blocks(workspace.get_corpus(training.corpus).test[0])
    predictions = load(workspace.train_or_resume(training)).predict([[row[0] for row in rows] for rows in sentences])
    is_correct = [
        row[1] == tag
        for rows, prediction in zip(sentences, predictions, strict=True)
        for row, tag in zip(rows, prediction.tags, strict=True)
        if row[0] == "say"
    ]
    return 100.0 * float(np.mean(is_correct))


def _read_blocks(path: Path) -> list[list[list[str]]]:
    """Read the columns of a file, block by block."""
    return [
        [line.split() for line in lines]
        for has_text, lines in groupby(iterate_lines(path), lambda line: bool(line.strip()))
        if has_text
    ]


CELL_COMPARISON = Experiment(
    name="cells",
    title="Elman, GRU and LSTM cells",
    source="Hochreiter & Schmidhuber 1997 (the adding problem); Cho et al. 2014, section 2.3 (a unit simpler than the "
    "LSTM); no figures of theirs are for the same data",
    description="Adding: two marked numbers of 30 (full: 100), error of their sum; copying: 2 symbols over a pause of "
    "8 steps (full: 3 over 20), chance level one in eight; translation: Bahdanau's model with each cell.",
    rows=_build_cell_rows,
    measure=_measure_cell,
    measures_time=True,
    columns=("error", "recall", "bleu", "perplexity", "training_speed", "parameters"),
    claims=(
        Claim("LSTM adds better than Elman", expect_lower("error", "lstm", than="elman")),
        Claim("GRU adds better than Elman", expect_lower("error", "gru", than="elman")),
        Claim("LSTM copies better than Elman", expect_higher("recall", "lstm", than="elman"), "ours"),
        Claim("GRU copies better than Elman", expect_higher("recall", "gru", than="elman"), "ours"),
        Claim("GRU translates better than Elman", expect_higher("bleu", "gru", than="elman"), "ours"),
        Claim("GRU translates as well as LSTM, within 2 BLEU", expect_similar("bleu", "gru", "lstm", 2.0)),
        Claim(
            "GRU trains faster than LSTM (tokens a second)", expect_higher("training_speed", "gru", than="lstm"), "ours"
        ),
    ),
    charts=(BarChart("error", "Error of the sum"), BarChart("recall", "Symbols copied, %"), BarChart("bleu", "BLEU")),
    cpu_minutes=4,
)
