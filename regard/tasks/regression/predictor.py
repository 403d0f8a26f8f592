"""Regression inference: output numbers for each time step; and the metrics RMSE and R²."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.config import parse_settings
from regard.data.indexed_dataset import Indices
from regard.data.readers.text import format_path, iterate_lines
from regard.errors import UserError, short_repr
from regard.models.schuster1997 import Regressor
from regard.plot import AttentionOverlay, PredictedSeries, WeightedWords
from regard.runs import Run
from regard.tasks.base import DevExample, choose_inference_device, get_single_run, map_batches_in_order, require_list
from regard.tasks.regression.dataset import RegressionDataset, SeriesScalers
from regard.tasks.regression.series import (
    MAX_MAGNITUDE,
    RegressionSettings,
    Series,
    Table,
    count_targets,
    parse_series,
    read_series_files,
)

_NUMBER_DIGITS = 6  # significant digits in text output


class RegressionPrediction(NamedTuple):
    """Output numbers for each time step."""

    outputs: Table  # (S, O)

    def to_text(self) -> str:
        """Return the steps separated by spaces; several numbers of a step are separated by commas."""
        return format_series(self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, a list for each step."""
        return {"outputs": self.outputs.tolist()}

    def make_attention_lines(self) -> list[WeightedWords]:
        """Return an empty list: the model has no attention."""
        return []

    def make_image_overlay(self) -> AttentionOverlay | None:
        """Return None: the input is not an image."""
        return None


def format_series(table: Table) -> str:
    """Format a table of numbers over time as one line."""
    return " ".join(",".join(f"{value:.{_NUMBER_DIGITS}g}" for value in step) for step in table.tolist())


def make_dev_example_series(example: DevExample, prediction: RegressionPrediction) -> list[PredictedSeries]:
    """Return reference and prediction of a dev example over time, for each output column."""
    return make_column_series(example.reference, prediction.outputs)


def make_column_series(reference: Table, predicted: Table) -> list[PredictedSeries]:
    """Return reference and prediction, column by column."""
    return [
        PredictedSeries(reference[:, column].tolist(), predicted[:, column].tolist())
        for column in range(reference.shape[1])
    ]


@torch.inference_mode()
def run_regressor(model: Regressor, dataset: RegressionDataset, device: torch.device, batch_tokens: int) -> list[Table]:
    """Return scaled outputs for each series, in order; the model must be in evaluation mode."""

    def predict_batch(rows: Indices) -> list[Table]:
        batch = dataset.make_batch(rows).to(device)
        outputs = model(batch.source, batch.lengths).double().cpu().numpy()
        return [output[:length] for output, length in zip(outputs, batch.lengths.tolist(), strict=True)]

    return map_batches_in_order(predict_batch, dataset.sizes, batch_tokens)


def compute_regression_metrics(gold: Sequence[Table], predicted: Sequence[Table]) -> dict[str, float]:
    """Return root mean square error, and R²: the fraction of the variance that is explained, at most 1.

    With several outputs R² is the mean; for an output that never varies it is 0.
    """
    gold_rows, predicted_rows = np.concatenate(gold), np.concatenate(predicted)
    squared_errors = np.square(gold_rows - predicted_rows)
    variance = np.square(gold_rows - gold_rows.mean(0)).mean(0)
    unexplained = np.divide(squared_errors.mean(0), variance, out=np.ones_like(variance), where=variance > 0)
    return {"rmse": float(np.sqrt(squared_errors.mean())), "r2": float((1 - unexplained).mean())}


_BATCH_TOKENS = 20_000

SeriesInput = Sequence[Sequence[float]] | Table  # (S, I)


class RegressionPredictor:
    """A regression model with its scalers."""

    def __init__(self, model: Regressor, scalers: SeriesScalers, device: torch.device) -> None:
        self.device = device
        self.model = model.to(device).eval()
        self.scalers = scalers

    def predict(self, inputs: Sequence[SeriesInput]) -> list[RegressionPrediction]:
        """Return numbers for each step of each series; a series is a list of steps, each a list of numbers."""
        tables = [self._to_table(series) for series in require_list(inputs, "series")]
        outputs = iter(self._predict_tables([Series(table, None) for table in tables if len(table)]))
        empty = np.zeros((0, self.scalers.column_counts[1]))
        return [RegressionPrediction(next(outputs) if len(table) else empty) for table in tables]

    def _to_table(self, given: SeriesInput) -> Table:
        """Return a series as an array; raise UserError if it has another shape, or NaN, inf or huge numbers."""
        width = self.scalers.column_counts[0]
        steps = f"steps, each of {width} number{'s' * (width > 1)}"
        try:
            table = np.array(given, dtype=np.float64)
        except (ValueError, TypeError, OverflowError) as error:
            raise UserError(f"a series must be a list of {steps}, not {short_repr(given)}") from error
        if table.shape == (0,):
            return np.zeros((0, width))
        if table.ndim != 2 or table.shape[1] != width or not (np.abs(table) <= MAX_MAGNITUDE).all():
            raise UserError(f"a series must be a list of {steps}, not {short_repr(given)}")
        return table

    def parse_json_input(self, given: Any) -> Table:
        """Validate a JSON object and return the series it holds."""
        if not isinstance(given, Mapping) or "inputs" not in given:
            raise UserError(f'a series must be {{"inputs": [[…], …]}}, not {short_repr(given)}')
        return self._to_table(given["inputs"])

    def _predict_tables(self, series: Sequence[Series]) -> list[Table]:
        """Return outputs in the original scale of the targets."""
        outputs = run_regressor(self.model, RegressionDataset(series, self.scalers), self.device, _BATCH_TOKENS)
        return [self.scalers.targets.inverse_transform(table) for table in outputs]

    def read_inputs(self, path: Path) -> Iterator[Table]:
        """Yield the series of a file."""
        return self.parse_lines(iterate_lines(path), format_path(path))

    def parse_lines(self, lines: Iterable[str], name: str | None = None) -> Iterator[Table]:
        """Yield the series in lines, in the format of training data; targets are optional and ignored."""
        for series, location in parse_series(lines, self.scalers.column_counts[0], name):
            if count_targets(series) not in (0, self.scalers.column_counts[1]):
                counts = self.scalers.column_counts
                raise location.make_error(
                    f"this model reads {counts[0]} numbers of a step, optionally followed by {counts[1]} targets"
                )
            yield series.inputs

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Return RMSE and R² on files with targets."""
        series = read_series_files(paths, self.scalers.column_counts[0])
        gold = [example.targets for example in series if example.targets is not None]
        if gold[0].shape[1] != self.scalers.column_counts[1]:
            raise UserError(
                f"{paths[0]} has {gold[0].shape[1]} targets in a step, but the model {self.scalers.column_counts[1]}"
            )
        counts = {"series": len(gold), "steps": sum(map(len, gold))}
        return counts | compute_regression_metrics(gold, self._predict_tables(series))


def load(*runs: str | Path, device: str | torch.device | None = None) -> RegressionPredictor:
    """Load the best checkpoint of a run for regression; by default on a GPU if there is one."""
    run = get_single_run(runs, "regresses")
    scalers = load_series_scalers(run)
    return RegressionPredictor(run.load_model(scalers.column_counts), scalers, choose_inference_device(device))


def load_series_scalers(run: Run) -> SeriesScalers:
    """Load the scalers of a run; raise UserError if they do not match `data.inputs`."""
    scalers = SeriesScalers.load(run.folder / "tokenizer")
    inputs = parse_settings(RegressionSettings, run.read_config()["data"], "data").inputs
    if scalers.column_counts[0] != inputs:
        raise UserError(
            f"{run.folder} reads {inputs} numbers of a step (data.inputs), but scales {scalers.column_counts[0]}"
        )
    return scalers
