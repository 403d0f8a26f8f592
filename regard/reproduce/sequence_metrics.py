"""Metrics of tagging and regression: accuracy and R², and the problems of long-range memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard.api import load
from regard.data.readers.conll import ColumnNames, read_tagged_sentences
from regard.data.readers.series import read_series_files
from regard.reproduce.experiment import ExperimentRow, MetricValues, TrainingSpec
from regard.reproduce.throughput import measure_translation_and_speed

if TYPE_CHECKING:
    from regard.reproduce.workspace import Workspace


def evaluate_on_test_set(workspace: Workspace, training: TrainingSpec) -> dict[str, Any]:
    """Evaluate a run on the test set with the metrics of its task."""
    corpus = workspace.get_corpus(training.corpus)
    return dict(load(workspace.train_or_resume(training)).evaluate(list(corpus.test)))


def measure_direction(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """Measure the accuracy of the tags and R² of the regression."""
    tags, series = (evaluate_on_test_set(workspace, training) for training in row.trainings)
    return {"accuracy": tags["accuracy"], "r2": series["r2"]}


def measure_cell(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """Measure the error of the sum, the recall of copied symbols, and translation with speed."""
    adding, copying, text = row.trainings
    return {
        "error": _measure_adding_error(workspace, adding),
        "recall": _measure_copy_recall(workspace, copying),
        **workspace.measure_row(measure_translation_and_speed, ExperimentRow(row.name, [text])),
    }


def _measure_adding_error(workspace: Workspace, training: TrainingSpec) -> float:
    """Return the RMSE at the last step, whose target is the sum; 0.41 is that of the mean."""
    test = read_series_files(workspace.get_corpus(training.corpus).test, num_inputs=2)
    predictions = load(workspace.train_or_resume(training)).predict([series.inputs for series in test])
    sums = [series.targets[-1, 0] for series in test if series.targets is not None]
    errors = [total - prediction.outputs[-1, 0] for total, prediction in zip(sums, predictions, strict=True)]
    return float(np.sqrt(np.mean(np.square(errors))))


def _measure_copy_recall(workspace: Workspace, training: TrainingSpec) -> float:
    """Return the percentage of symbols that were copied correctly."""
    test = list(read_tagged_sentences(workspace.get_corpus(training.corpus).test, ColumnNames()))
    predictions = load(workspace.train_or_resume(training)).predict([sentence.words for sentence in test])
    is_correct = [
        label == tag
        for sentence, prediction in zip(test, predictions, strict=True)
        for (word, *_), label, tag in zip(*sentence, prediction.tags, strict=True)
        if word == "say"
    ]
    return 100.0 * float(np.mean(is_correct))
