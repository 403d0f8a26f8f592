"""How good a model is on the dev set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from regard.config import parse_settings
from regard.data.sentence_pair import Pair
from regard.errors import UserError
from regard.models.schuster1997 import Regressor
from regard.plot import plot_predicted_series
from regard.recipes import Recipe
from regard.runs import Run
from regard.tasks.base import DevExample, PreparedRun, Validation, split_dev_examples
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
    """A series of the dev set as the model follows it now."""

    reference: Table
    predicted: Table

    def to_dict(self) -> dict[str, str]:
        """The right numbers and the model's."""
        return {"right": format_series(self.reference), "model": format_series(self.predicted)}

    def plot(self) -> Figure | None:
        """Both over time."""
        return plot_predicted_series(make_column_series(self.reference, self.predicted))


class RegressionValidator:
    """The dev set: the mean square error in the scale of training of all of it, and figures of its first `measured`."""

    def __init__(self, dev: Sequence[Series], scalers: SeriesScalers, batch_tokens: int, num_measured: int) -> None:
        self.gold = [one.targets for one in dev if one.targets is not None]
        self.scalers = scalers
        self.batch_tokens = batch_tokens
        self.num_measured = num_measured
        self.dataset = RegressionDataset(dev, scalers)

    def __call__(self, model: Regressor, device: torch.device) -> Validation:
        """Measures the model; leaves it as it was, and takes nothing from the random generators."""
        training = model.training
        model.eval()
        given = run_regressor(model, self.dataset, device, self.batch_tokens)
        model.train(training)
        errors = np.concatenate(given) - np.concatenate(self.dataset.target)
        made = [self.scalers.targets.inverse_transform(one) for one in given[: self.num_measured]]
        gold = self.gold[: self.num_measured]
        samples = [RegressionSample(*both) for both in zip(gold[:SAMPLES], made[:SAMPLES], strict=True)]
        return Validation(float(np.square(errors).mean()), compute_regression_metrics(gold, made), "r2", samples)


class RegressionSplit(NamedTuple):
    """Series to train on, to validate on, and how many were too long."""

    train: list[Series]
    dev: list[Series]
    too_long: int


def prepare_regression(run: Run, config: Recipe, resume: bool) -> PreparedRun:
    """Series and their scales."""
    training = config["training"]
    data = parse_settings(RegressionSettings, config["data"], "data")
    found = split_regression_data(data, training["seed"])
    start = training["init_from"]
    scales = (
        load_series_scalers(run if resume else Run(Path(start))) if resume or start else SeriesScalers.fit(found.train)
    )
    for one in (*found.train[:1], *found.dev[:1]):
        if (data.inputs, count_targets(one)) != scales.column_counts:
            wanted = f"{scales.column_counts[0]} numbers to read and {scales.column_counts[1]} to find"
            raise UserError(f"a step has {wanted} in the training data, not {data.inputs} and {count_targets(one)}")
    return PreparedRun(
        run,
        config,
        RegressionDataset(found.train, scales),
        RegressionValidator(found.dev, scales, int(training["batch_tokens"]), int(training["validate_pairs"])),
        scales.column_counts,
        scales.save,
        _describe_regression_data(found, scales),
    )


def split_regression_data(data: RegressionSettings, seed: int) -> RegressionSplit:
    """What is trained on, and the dev set: as it is named, or series that their hashes choose."""
    if not data.train:
        raise UserError("nothing to train on: name files with the numbers of a step on each line")
    every = _read_all_series(data.train, data)
    if data.dev:
        train, dev = every, _read_all_series(data.dev, data)
    else:
        train, dev = split_dev_examples(every, _series_to_pair, seed, data.dev_series, "there is one series")
    short = [one for one in train if len(one.inputs) <= data.max_length]
    if not short:
        raise UserError(f"no series has at most {data.max_length} steps (data.max_length), nothing to train on")
    return RegressionSplit(short, dev, len(train) - len(short))


def _read_all_series(names: Sequence[str], data: RegressionSettings) -> list[Series]:
    """The series of some files."""
    return read_series_files([Path(name) for name in names], data.inputs)


def _series_to_pair(one: Series) -> Pair:
    """Both sides as text, for what is held out by its content."""
    return Pair(str(one.inputs.tolist()), "" if one.targets is None else str(one.targets.tolist()))


def load_regression_dev_set(run: Run) -> list[DevExample]:
    """The series that a run was validated on."""
    config = run.read_config()
    found = split_regression_data(
        parse_settings(RegressionSettings, config["data"], "data"), config["training"]["seed"]
    ).dev
    return [DevExample(one.inputs, format_series(one.targets), one.targets) for one in found if one.targets is not None]


def _describe_regression_data(split: RegressionSplit, scalers: SeriesScalers) -> str:
    """What there is to train on."""
    left_out = f" (left out: {split.too_long} too long)" if split.too_long else ""
    inputs, targets = scalers.column_counts
    return (
        f"{len(split.train):,} series{left_out}, {len(split.dev):,} dev series, "
        f"{inputs} numbers to read and {targets} to find in a step"
    )
