"""Numbers that a model gave for a series."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.config import parse_settings
from regard.data.indexed_dataset import Indices
from regard.data.readers.text_io import format_path, iterate_lines
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

_NUMBER_DIGITS = 6  # of a number that is written down


class RegressionPrediction(NamedTuple):
    """What was found for each step."""

    outputs: Table  # S,O

    def to_text(self) -> str:
        """The steps with spaces between; several numbers of a step have commas between."""
        return format_series(self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """The numbers, a list for each step."""
        return {"outputs": self.outputs.tolist()}

    def make_attention_lines(self) -> list[WeightedWords]:
        """Nothing: there is no attention."""
        return []

    def make_image_overlay(self) -> AttentionOverlay | None:
        """Nothing: there is no image."""
        return None


def format_series(table: Table) -> str:
    """Numbers over time in one line."""
    return " ".join(",".join(f"{one:.{_NUMBER_DIGITS}g}" for one in step) for step in table.tolist())


def make_dev_example_series(example: DevExample, prediction: RegressionPrediction) -> list[PredictedSeries]:
    """What is right and what the model gave, over time, for each number of a step."""
    return make_column_series(example.reference, prediction.outputs)


def make_column_series(reference: Table, predicted: Table) -> list[PredictedSeries]:
    """Both, column by column."""
    return [
        PredictedSeries(reference[:, column].tolist(), predicted[:, column].tolist())
        for column in range(reference.shape[1])
    ]


@torch.inference_mode()
def run_regressor(model: Regressor, dataset: RegressionDataset, device: torch.device, batch_tokens: int) -> list[Table]:
    """What the model gives for each series, in order, in the scale of training; in batches of about one length."""

    def predict_batch(rows: Indices) -> list[Table]:
        batch = dataset.make_batch(rows).to(device)
        outputs = model(batch.source, batch.lengths).double().cpu().numpy()
        return [own[:length] for own, length in zip(outputs, batch.lengths.tolist(), strict=True)]

    return map_batches_in_order(predict_batch, dataset.sizes, batch_tokens)


def compute_regression_metrics(gold: Sequence[Table], predicted: Sequence[Table]) -> dict[str, float]:
    """The root of the mean square error, and R²: the share of the variance that is accounted for, 1 at best.

    Of several outputs R² is the mean; one that never varies has 0.
    """
    right, made = np.concatenate(gold), np.concatenate(predicted)
    squares = np.square(right - made)
    spread = np.square(right - right.mean(0)).mean(0)
    missed = np.divide(squares.mean(0), spread, out=np.ones_like(spread), where=spread > 0)
    return {"rmse": float(np.sqrt(squares.mean())), "r2": float((1 - missed).mean())}


_BATCH_TOKENS = 20_000

SeriesInput = Sequence[Sequence[float]] | Table  # a step of time after the other, the numbers of each


class RegressionPredictor:
    """A model with the scales of its numbers."""

    def __init__(self, model: Regressor, scalers: SeriesScalers, device: torch.device) -> None:
        self.device = device
        self.model = model.to(device).eval()
        self.scalers = scalers

    def predict(self, inputs: Sequence[SeriesInput]) -> list[RegressionPrediction]:
        """Numbers for each step of each series, in order; a series is a list of steps, a step a list of numbers."""
        tables = [self._to_table(given) for given in require_list(inputs, "series")]
        made = iter(self._predict_tables([Series(table, None) for table in tables if len(table)]))
        none = np.zeros((0, self.scalers.column_counts[1]))
        return [RegressionPrediction(next(made) if len(table) else none) for table in tables]

    def _to_table(self, given: SeriesInput) -> Table:
        """A series as it was given, if it can be read."""
        width = self.scalers.column_counts[0]
        steps = f"steps, each of {width} number{'s' * (width > 1)}"
        try:
            found = np.array(given, dtype=np.float64)
        except (ValueError, TypeError, OverflowError) as error:
            raise UserError(f"a series is a list of {steps}, not {short_repr(given)}") from error
        if found.shape == (0,):
            return np.zeros((0, width))
        if found.ndim != 2 or found.shape[1] != width or not (np.abs(found) <= MAX_MAGNITUDE).all():
            raise UserError(f"a series is a list of {steps}, not {short_repr(given)}")
        return found

    def parse_json_input(self, given: Any) -> Table:
        """A series as in a line of JSON."""
        if not isinstance(given, Mapping) or "inputs" not in given:
            raise UserError(f'a series is {{"inputs": [[…], …]}}, not {short_repr(given)}')
        return self._to_table(given["inputs"])

    def _predict_tables(self, series: Sequence[Series]) -> list[Table]:
        """What the model gives, in the scale that its targets had."""
        made = run_regressor(self.model, RegressionDataset(series, self.scalers), self.device, _BATCH_TOKENS)
        return [self.scalers.targets.inverse_transform(one) for one in made]

    def read_inputs(self, path: Path) -> Iterator[Table]:
        """The series of a file."""
        return self.parse_lines(iterate_lines(path), format_path(path))

    def parse_lines(self, lines: Iterable[str], name: str | None = None) -> Iterator[Table]:
        """The series that lines hold, as in training; targets may be there or not."""
        for one, location in parse_series(lines, self.scalers.column_counts[0], name):
            if count_targets(one) not in (0, self.scalers.column_counts[1]):
                wanted = self.scalers.column_counts
                raise location.make_error(f"of a step this model reads {wanted[0]} numbers and finds {wanted[1]} more")
            yield one.inputs

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """How near the numbers are to those of files with targets."""
        found = read_series_files(paths, self.scalers.column_counts[0])
        gold = [one.targets for one in found if one.targets is not None]
        if gold[0].shape[1] != self.scalers.column_counts[1]:
            raise UserError(
                f"{paths[0]} has {gold[0].shape[1]} targets in a step, and the model {self.scalers.column_counts[1]}"
            )
        counts = {"series": len(gold), "steps": sum(map(len, gold))}
        return counts | compute_regression_metrics(gold, self._predict_tables(found))


def load(*runs: str | Path, device: str | torch.device | None = None) -> RegressionPredictor:
    """The best model of a run, ready to follow series."""
    run = get_single_run(runs, "regresses")
    scales = load_series_scalers(run)
    return RegressionPredictor(run.load_model(scales.column_counts), scales, choose_inference_device(device))


def load_series_scalers(run: Run) -> SeriesScalers:
    """The scales of a run, for as many inputs as it says that it reads."""
    scales = SeriesScalers.load(run.folder / "tokenizer")
    inputs = parse_settings(RegressionSettings, run.read_config()["data"], "data").inputs
    if scales.column_counts[0] != inputs:
        raise UserError(
            f"{run.folder} reads {inputs} numbers of a step (data.inputs), and scales {scales.column_counts[0]}"
        )
    return scales
