"""The regression task: data preparation, dev split, and validation with mean square error, RMSE and R²."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from regard.data.sentence_pair import Pair
from regard.errors import UserError
from regard.models.schuster1997 import Regressor
from regard.plot import plot_predicted_series
from regard.recipes import RunConfig
from regard.runs import Run
from regard.tasks.base import DevExample, PreparedRun, Validation, find_vocabulary_run, split_dev_examples
from regard.tasks.regression.dataset import RegressionDataset, SeriesScalers
from regard.tasks.regression.predictor import (
    compute_regression_metrics,
    format_series,
    load_series_scalers,
    make_column_series,
    run_regressor,
)
from regard.tasks.regression.series import RegressionSettings, Series, Table, count_targets, read_series_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SAMPLES = 5


class RegressionSample(NamedTuple):
    """A dev series with its reference and the current prediction."""

    reference: Table
    predicted: Table

    def to_dict(self) -> dict[str, str]:
        """Return reference and prediction as text."""
        return {"right": format_series(self.reference), "model": format_series(self.predicted)}

    def plot(self) -> Figure | None:
        """Return a figure of reference and prediction over time."""
        return plot_predicted_series(make_column_series(self.reference, self.predicted))


class RegressionValidator:
    """Validate on the dev set: mean square error of all scaled series, and RMSE and R² of the first `num_measured`."""

    def __init__(self, dev: Sequence[Series], scalers: SeriesScalers, batch_tokens: int, num_measured: int) -> None:
        self.gold = [series.targets for series in dev if series.targets is not None]
        self.scalers = scalers
        self.batch_tokens = batch_tokens
        self.num_measured = num_measured
        self.dataset = RegressionDataset(dev, scalers)

    def __call__(self, model: Regressor, device: torch.device) -> Validation:
        """Return the metrics of a model; leave the model and the random generators unchanged."""
        training = model.training
        model.eval()
        outputs = run_regressor(model, self.dataset, device, self.batch_tokens)
        model.train(training)
        errors = np.concatenate(outputs) - np.concatenate(self.dataset.target)
        predictions = [self.scalers.targets.inverse_transform(output) for output in outputs[: self.num_measured]]
        gold = self.gold[: self.num_measured]
        samples = [RegressionSample(*pair) for pair in zip(gold[:SAMPLES], predictions[:SAMPLES], strict=True)]
        return Validation(float(np.square(errors).mean()), compute_regression_metrics(gold, predictions), "r2", samples)


class RegressionSplit(NamedTuple):
    """Training and dev series, and how many were left out as too long."""

    train: list[Series]
    dev: list[Series]
    too_long: int


def prepare_regression(run: Run, config: RunConfig, resume: bool) -> PreparedRun:
    """Read and split the series, and fit or load the scalers."""
    data: RegressionSettings = config.data
    training, parent = config.training, find_vocabulary_run(run, config, resume)
    split = split_regression_data(data, training.seed)
    scalers = load_series_scalers(parent) if parent else SeriesScalers.fit(split.train)
    for series in (*split.train[:1], *split.dev[:1]):
        if (data.inputs, count_targets(series)) != scalers.column_counts:
            expected = f"{scalers.column_counts[0]} inputs and {scalers.column_counts[1]} targets"
            raise UserError(
                f"a step has {expected} in the training data, not {data.inputs} and {count_targets(series)}"
            )
    return PreparedRun(
        run,
        config,
        RegressionDataset(split.train, scalers),
        RegressionValidator(split.dev, scalers, training.batch_tokens, training.validate_pairs),
        scalers.column_counts,
        scalers.save,
        _describe_regression_data(split, scalers),
    )


def split_regression_data(data: RegressionSettings, seed: int) -> RegressionSplit:
    """Read the series; without a dev set, hold out series by a hash of their content."""
    if not data.train:
        raise UserError("nothing to train on: name files with the numbers of a step on each line")
    series = _read_all_series(data.train, data)
    if data.dev:
        train, dev = series, _read_all_series(data.dev, data)
    else:
        train, dev = split_dev_examples(series, _series_to_pair, seed, data.dev_series, "there is one series")
    short_enough = [example for example in train if len(example.inputs) <= data.max_length]
    if not short_enough:
        raise UserError(f"nothing to train on: all series have more than {data.max_length} steps (data.max_length)")
    return RegressionSplit(short_enough, dev, len(train) - len(short_enough))


def _read_all_series(names: Sequence[str], data: RegressionSettings) -> list[Series]:
    return read_series_files([Path(name) for name in names], data.inputs)


def _series_to_pair(one: Series) -> Pair:
    """Return (inputs, targets) as text, so that the dev set is split by inputs."""
    return Pair(str(one.inputs.tolist()), "" if one.targets is None else str(one.targets.tolist()))


def load_regression_dev_set(config: RunConfig) -> list[DevExample]:
    """Return the dev series of a run."""
    dev_series = split_regression_data(config.data, config.training.seed).dev
    return [
        DevExample(series.inputs, format_series(series.targets), series.targets)
        for series in dev_series
        if series.targets is not None
    ]


def _describe_regression_data(split: RegressionSplit, scalers: SeriesScalers) -> str:
    left_out = f" (left out: {split.too_long} too long)" if split.too_long else ""
    inputs, targets = scalers.column_counts
    return (
        f"{len(split.train):,} series{left_out}, {len(split.dev):,} dev series, "
        f"{inputs} inputs and {targets} targets in a step"
    )
