"""Regression data: standard scaling fitted on the training data, and padded batches of series."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.batch import Batch
from regard.data.indexed_dataset import Indices
from regard.data.sampler import DatasetPart
from regard.errors import UserError
from regard.tasks.regression.series import Series, Table

_SCALE_FILE = "scale.json"
MAX_DEVIATIONS = 1e6  # scaled values are clipped here, so that float32 can hold their squares


class StandardScaler(NamedTuple):
    """Mean and standard deviation of each column."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

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
            scaled: Table = np.clip(
                (table - np.array(self.mean)) / np.array(self.deviation), -MAX_DEVIATIONS, MAX_DEVIATIONS
            )
        return scaled

    def inverse_transform(self, table: Table) -> Table:
        """Return values in their original scale."""
        original: Table = table * np.array(self.deviation) + np.array(self.mean)
        return original


class SeriesScalers(NamedTuple):
    """Scalers of the inputs and of the targets."""

    inputs: StandardScaler
    targets: StandardScaler

    @classmethod
    def fit(cls, series: Sequence[Series]) -> SeriesScalers:
        """Fit both scalers to the training data."""
        return cls(
            StandardScaler.fit([example.inputs for example in series]),
            StandardScaler.fit([example.targets for example in series if example.targets is not None]),
        )

    @property
    def column_counts(self) -> tuple[int, int]:
        """Number of inputs and number of targets per step."""
        return len(self.inputs.mean), len(self.targets.mean)

    def save(self, folder: Path) -> None:
        """Write both scalers into a folder."""
        document = {"inputs": self.inputs._asdict(), "targets": self.targets._asdict()}
        (folder / _SCALE_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> SeriesScalers:
        """Read what `save` wrote."""
        path = folder / _SCALE_FILE
        if not path.is_file():
            raise UserError(f"{path} is missing: the run has no scaling of its numbers")
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return cls(_parse_scaler(document["inputs"]), _parse_scaler(document["targets"]))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise UserError(f"{path} does not have a mean and a deviation for each column") from error


def _parse_scaler(fields: Any) -> StandardScaler:
    mean, deviation = (tuple(map(float, fields[name])) for name in ("mean", "deviation"))
    if len(mean) != len(deviation) or not mean or not all(map(math.isfinite, (*mean, *deviation))):
        raise ValueError("expected a finite mean and deviation for each column")
    if min(deviation) <= 0:
        raise ValueError("a deviation must be more than 0")
    return StandardScaler(mean, deviation)


@dataclass(frozen=True)
class RegressionBatch(Batch):
    """A batch of B series, right-padded with zeros."""

    source: Tensor  # (B, S, I)
    lengths: Tensor  # (B,)
    target: Tensor  # (B, S, O)

    @property
    def num_targets(self) -> int:
        """Number of target values, which the loss is averaged over."""
        return self.num_tokens * self.target.shape[2]

    @property
    def num_tokens(self) -> int:
        """Number of time steps without padding, for the training speed."""
        return int(self.lengths.sum())


class RegressionDataset:
    """Scaled series, all in memory; missing targets are zeros."""

    parts: Sequence[DatasetPart] = ()

    def __init__(self, series: Sequence[Series], scalers: SeriesScalers) -> None:
        self.num_targets = scalers.column_counts[1]
        self.source = [scalers.inputs.transform(one.inputs) for one in series]
        self.target = [
            np.zeros((len(one.inputs), self.num_targets))
            if one.targets is None
            else scalers.targets.transform(one.targets)
            for one in series
        ]
        self.sizes = np.array([len(one) for one in self.source], dtype=np.int32)
        digest = hashlib.sha256(self.sizes.tobytes())
        for table in (*self.source, *self.target):
            digest.update(np.ascontiguousarray(table).data)
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.source)

    def make_batch(self, rows: Indices, seed: int = 0) -> RegressionBatch:
        """Return the series at `rows`; `seed` is unused, as nothing is random."""
        lengths = torch.from_numpy(self.sizes[rows].astype(np.int64))
        return RegressionBatch(_pad_tables(self.source, rows), lengths, _pad_tables(self.target, rows))

    def release_memory(self) -> None:
        """Do nothing: all data stay in memory."""


def _pad_tables(tables: Sequence[Table], rows: Indices) -> Tensor:
    """Return the tables at `rows` as one tensor (B, S, columns), padded with zeros."""
    chosen = [tables[row] for row in rows.tolist()]
    padded = np.zeros((len(chosen), max(map(len, chosen)), chosen[0].shape[1]), dtype=np.float32)
    for index, table in enumerate(chosen):
        padded[index, : len(table)] = table
    return torch.from_numpy(padded)
