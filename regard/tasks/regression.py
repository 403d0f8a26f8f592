"""Time series regression: output numbers for each step of a series of input numbers; RMSE and R²."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.config import Count, convert_value
from regard.data.dataset import Indices, SequenceBatch, TrainingDataset, hash_arrays
from regard.data.readers.text import Pair, parse_json_line
from regard.data.series import MAX_MAGNITUDE, Series, Table, parse_series, read_series
from regard.data.split import BaseDataSettings
from regard.errors import UserError, short_repr
from regard.plot.charts import PredictedSeries
from regard.recipes.recipe import RunConfig
from regard.runs import Run
from regard.synthetic.corpora import write_regression_corpus
from regard.tasks.base import DevExample, InMemoryTask, Prediction, Predictor, Split, ValidationSample, require_list


@dataclass(frozen=True, kw_only=True)
class RegressionSettings(BaseDataSettings):
    """The `data` section of a regression recipe; the first `inputs` numbers of a step are inputs, the rest targets."""

    inputs: Count = 1
    max_length: Count = 2000
    dev_series: Count = 1000


@dataclass(frozen=True, kw_only=True)
class NoTextSettings:
    """The `text` section of a regression recipe, which is empty."""


_SCALE_FILE = "scale.json"
MAX_DEVIATIONS = 1e6  # scaled values are clipped here, so that float32 can hold their squares


@dataclass(frozen=True)
class StandardScaler:
    """Mean and standard deviation of each column."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.mean) == len(self.deviation) or not all(map(math.isfinite, self.mean + self.deviation)):
            raise ValueError("expected a finite mean and deviation for each column")
        if min(self.deviation) <= 0:
            raise ValueError("a deviation must be more than 0")

    @classmethod
    def fit(cls, tables: Sequence[Table]) -> StandardScaler:
        """Fit the scaler to several tables; a constant column is only shifted."""
        rows = np.concatenate(tables)
        mean, deviation = rows.mean(0), rows.std(0)
        is_constant = deviation <= 1e-9 * np.abs(mean)
        return cls(tuple(mean.tolist()), tuple(np.where(is_constant, 1.0, deviation).tolist()))

    def transform(self, table: Table) -> Table:
        """Return values with mean 0 and deviation 1, clipped to ±`MAX_DEVIATIONS`."""
        with np.errstate(over="ignore"):
            scaled: Table = (table - np.array(self.mean)) / np.array(self.deviation)
        return np.clip(scaled, -MAX_DEVIATIONS, MAX_DEVIATIONS)

    def inverse_transform(self, table: Table) -> Table:
        """Return values in their original scale."""
        original: Table = table * np.array(self.deviation) + np.array(self.mean)
        return original


@dataclass(frozen=True)
class SeriesScalers:
    """Scalers of the inputs and of the targets: the vocabulary of regression."""

    inputs: StandardScaler
    targets: StandardScaler

    @classmethod
    def fit(cls, series: Sequence[Series]) -> SeriesScalers:
        """Fit both scalers to the training data."""
        inputs, targets = [example.inputs for example in series], [example.targets for example in series]
        return cls(StandardScaler.fit(inputs), StandardScaler.fit(targets))

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of inputs and number of targets per step."""
        return len(self.inputs.mean), len(self.targets.mean)

    def describe(self) -> str:
        """Return the sizes as text."""
        return f"{self.sizes[0]} inputs and {self.sizes[1]} targets in a step"

    def save(self, folder: Path) -> None:
        """Write both scalers into a folder."""
        (folder / _SCALE_FILE).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> SeriesScalers:
        """Read what `save` wrote."""
        path = folder / _SCALE_FILE
        if not path.is_file():
            raise UserError(f"{path} is missing: the run has no scaling of its numbers")
        fields = parse_json_line(path.read_text(encoding="utf-8", errors="replace"), str(path))
        return convert_value(fields, cls, str(path))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class RegressionBatch(SequenceBatch):
    """A batch of B series, (B, S, I), right-padded with zeros."""

    target: Tensor  # (B, S, O)

    @property
    def num_targets(self) -> int:
        """Number of target values, which the loss is averaged over."""
        return self.num_tokens * self.target.shape[2]


class RegressionDataset(TrainingDataset):
    """Scaled series; missing targets are zeros."""

    def __init__(self, series: Sequence[Series], scalers: SeriesScalers) -> None:
        num_inputs, num_targets = scalers.sizes
        for one in series:
            if one.inputs.shape[1] != num_inputs or one.num_targets not in (0, num_targets):
                raise UserError(
                    f"{one.where}: {one.inputs.shape[1]} inputs and {one.num_targets} targets in a step, "
                    f"but {num_inputs} and {num_targets} in the training data"
                )
        self.source = [scalers.inputs.transform(one.inputs) for one in series]
        self.target = [
            scalers.targets.transform(one.targets) if one.num_targets else np.zeros((len(one.inputs), num_targets))
            for one in series
        ]
        self.sizes = np.array([len(one) for one in self.source], dtype=np.int32)
        self.fingerprint = hash_arrays(self.sizes, *self.source, *self.target)

    def make_batch(self, rows: Indices, seed: int = 0) -> RegressionBatch:
        """Return the series at `rows`; `seed` is unused, as nothing is random."""
        lengths = torch.from_numpy(self.sizes[rows].astype(np.int64))
        return RegressionBatch(_pad_tables(self.source, rows), lengths, _pad_tables(self.target, rows))


def _pad_tables(tables: Sequence[Table], rows: Indices) -> Tensor:
    """Return the tables at `rows` as one tensor (B, S, columns), padded with zeros."""
    chosen = [torch.from_numpy(tables[row].astype(np.float32)) for row in rows.tolist()]
    return torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True)


_NUMBER_DIGITS = 6  # significant digits in text output


@dataclass(frozen=True)
class RegressionPrediction(Prediction):
    """Output numbers for each time step."""

    outputs: Table  # (S, O)

    def to_text(self) -> str:
        """Return the steps separated by spaces; several numbers of a step are separated by commas."""
        return format_series(self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, a list for each step."""
        return {"outputs": self.outputs.tolist()}

    def make_series(self, reference: Table) -> list[PredictedSeries]:
        """Return reference and prediction over time, for each output column."""
        return [PredictedSeries(*pair) for pair in zip(reference.T.tolist(), self.outputs.T.tolist(), strict=True)]


def format_series(table: Table) -> str:
    """Format a table of numbers over time as one line."""
    return " ".join(",".join(f"{value:.{_NUMBER_DIGITS}g}" for value in step) for step in table.tolist())


def compute_regression_metrics(gold: Sequence[Table], predicted: Sequence[Table]) -> dict[str, float]:
    """Return root mean square error, and R²: the fraction of the variance that is explained, at most 1.

    With several outputs R² is the mean; for an output that never varies it is 0.
    """
    gold_rows, predicted_rows = np.concatenate(gold), np.concatenate(predicted)
    squared_errors = np.square(gold_rows - predicted_rows)
    variance = np.square(gold_rows - gold_rows.mean(0)).mean(0)
    unexplained = np.divide(squared_errors.mean(0), variance, out=np.ones_like(variance), where=variance > 0)
    return {"rmse": float(np.sqrt(squared_errors.mean())), "r2": float((1 - unexplained).mean())}


SeriesInput = Sequence[Sequence[float]] | Table  # (S, I)


class RegressionPredictor(Predictor):
    """A regression model with its scalers."""

    nouns = "series"
    dataset = RegressionDataset
    selection_metrics = ("r2", "rmse")
    min_batch_tokens = 20_000

    def predict(self, inputs: Sequence[SeriesInput]) -> list[RegressionPrediction]:
        """Return numbers for each step of each series; a series is a list of steps, each a list of numbers."""
        tables = [self._to_table(series) for series in require_list(inputs, "series")]
        series = [Series(table, np.zeros((len(table), 0))) for table in tables if len(table)]
        outputs = iter(self.run_model(RegressionDataset(series, self.vocabulary)))
        empty = np.zeros((0, self.vocabulary.sizes[1]))
        return [self._make_prediction(next(outputs) if len(table) else empty) for table in tables]

    def run_batch(self, batch: RegressionBatch) -> list[Table]:
        """Return the scaled outputs for each series."""
        outputs = self.model(batch.source, batch.lengths).double().cpu().numpy()
        return [output[:length] for output, length in zip(outputs, batch.lengths.tolist(), strict=True)]

    def _make_prediction(self, output: Table) -> RegressionPrediction:
        """Return an output in the original scale of the targets."""
        return RegressionPrediction(self.vocabulary.targets.inverse_transform(output))

    def _to_table(self, given: SeriesInput) -> Table:
        """Return a series as an array; raise UserError if it has another shape, or NaN, inf or huge numbers."""
        width = self.vocabulary.sizes[0]
        problem = f"a series must be a list of steps, each of {width} number{'s' * (width > 1)}"
        try:
            table = np.array(given, dtype=np.float64)
        except (ValueError, TypeError, OverflowError) as error:
            raise UserError(f"{problem}, not {short_repr(given)}") from error
        if table.shape == (0,):
            return np.zeros((0, width))
        if table.ndim != 2 or table.shape[1] != width or not (np.abs(table) <= MAX_MAGNITUDE).all():
            raise UserError(f"{problem}, not {short_repr(given)}")
        return table

    def parse_json_input(self, given: Any) -> Table:
        """Validate a JSON object and return the series it holds."""
        if not isinstance(given, Mapping) or "inputs" not in given:
            raise UserError(f'a series must be {{"inputs": [[…], …]}}, not {short_repr(given)}')
        return self._to_table(given["inputs"])

    def parse_lines(self, lines: Iterable[str], name: str = "") -> Iterator[Table]:
        """Yield the series in lines, in the format of training data; targets are optional and ignored."""
        num_inputs, num_targets = self.vocabulary.sizes
        for series in parse_series(lines, num_inputs, name):
            if series.num_targets not in (0, num_targets):
                raise UserError(
                    f"{series.where}: this model reads {num_inputs} numbers of a step, optionally followed by "
                    f"{num_targets} targets"
                )
            yield series.inputs

    @classmethod
    def iterate_examples(cls, paths: Sequence[Path], data: RegressionSettings) -> Iterator[Series]:
        """Yield series with targets."""
        return read_series(paths, data.inputs)

    def compute_metrics(self, examples: Sequence[Series], outputs: Sequence[Table]) -> dict[str, Any]:
        """Return the mean square error of the scaled series, and RMSE and R² of the series."""
        gold = [example.targets for example in examples]
        predicted = [self._make_prediction(output).outputs for output in outputs]
        scaled_errors = np.concatenate(outputs) - self.vocabulary.targets.transform(np.concatenate(gold))
        loss = float(np.square(scaled_errors).mean())
        return {"steps": sum(map(len, gold)), "loss": loss} | compute_regression_metrics(gold, predicted)

    def make_sample(self, example: Series, output: Table) -> ValidationSample:
        """Return targets and outputs."""
        prediction = self._make_prediction(output)
        texts = {"right": format_series(example.targets), "model": prediction.to_text()}
        return ValidationSample(texts, partial(prediction.plot, example.targets))


class RegressionTask(InMemoryTask[Series]):
    """Predict numbers from numbers."""

    verb = "regresses"
    demo_recipe = "schuster1997-regression"
    data_settings = RegressionSettings
    text_settings = NoTextSettings
    predictor = RegressionPredictor
    length_unit = "steps"
    too_few = "there is one series, or all are equal"
    dev_limit = "dev_series"
    data_hint = "files with the numbers of a step on each line"
    write_synthetic_corpus = staticmethod(write_regression_corpus)

    def measure_length(self, example: Series) -> int:
        """Return the number of steps."""
        return len(example.inputs)

    def make_split_pair(self, example: Series) -> Pair:
        """Return inputs and targets as text."""
        return Pair(str(example.inputs.tolist()), str(example.targets.tolist()))

    def learn_vocabulary(self, split: Split[Series], config: RunConfig) -> SeriesScalers:
        """Fit the scalers."""
        return SeriesScalers.fit(split.train)

    def load_vocabulary(self, run: Run, config: RunConfig) -> SeriesScalers:
        """Load the scalers of a run; raise UserError if they do not match its `data.inputs`."""
        scalers = SeriesScalers.load(run.folder / "tokenizer")
        inputs = self.make_config(run.read_config()).data.inputs
        if scalers.sizes[0] != inputs:
            raise UserError(
                f"{run.folder} reads {inputs} numbers of a step (data.inputs), but scales {scalers.sizes[0]}"
            )
        return scalers

    def make_dev_example(self, example: Series) -> DevExample:
        """Return inputs and targets of a series."""
        return DevExample(example.inputs, format_series(example.targets), example.targets)
