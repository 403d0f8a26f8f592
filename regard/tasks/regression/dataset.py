"""Numbers with mean 0 and deviation 1, as a network likes them, and back: measured once, on the training data."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.batch import make_even_slices
from regard.data.indexed_dataset import Indices
from regard.data.sampler import DatasetPart
from regard.errors import UserError
from regard.tasks.regression.series import Series, Table

_SCALE_FILE = "scale.json"
MAX_DEVIATIONS = 1e6  # deviations, beyond which a number is as good as any other: single precision holds its square


class StandardScaler(NamedTuple):
    """Of each column."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def fit(cls, tables: Sequence[Table]) -> StandardScaler:
        """The scale of some tables together; a column in which all numbers are one is only moved."""
        every = np.concatenate(tables)
        mean, deviation = every.mean(0), every.std(0)
        flat = deviation <= 1e-9 * np.abs(mean)
        return cls(tuple(mean.tolist()), tuple(np.where(flat, 1.0, deviation).tolist()))

    def transform(self, table: Table) -> Table:
        """Numbers as a model reads them."""
        with np.errstate(over="ignore"):
            found: Table = np.clip(
                (table - np.array(self.mean)) / np.array(self.deviation), -MAX_DEVIATIONS, MAX_DEVIATIONS
            )
        return found

    def inverse_transform(self, table: Table) -> Table:
        """Numbers as they were."""
        found: Table = table * np.array(self.deviation) + np.array(self.mean)
        return found


class SeriesScalers(NamedTuple):
    """Of what is read, and of what is to be found."""

    inputs: StandardScaler
    targets: StandardScaler

    @classmethod
    def fit(cls, series: Sequence[Series]) -> SeriesScalers:
        """Those of the training data."""
        return cls(
            StandardScaler.fit([one.inputs for one in series]),
            StandardScaler.fit([one.targets for one in series if one.targets is not None]),
        )

    @property
    def column_counts(self) -> tuple[int, int]:
        """How many numbers a step has, of each."""
        return len(self.inputs.mean), len(self.targets.mean)

    def save(self, folder: Path) -> None:
        """Writes them into a folder."""
        document = {"inputs": self.inputs._asdict(), "targets": self.targets._asdict()}
        (folder / _SCALE_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> SeriesScalers:
        """Reads what `save` wrote."""
        path = folder / _SCALE_FILE
        if not path.is_file():
            raise UserError(f"{path} is missing: the run does not say how its numbers are scaled")
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return cls(_parse_scaler(document["inputs"]), _parse_scaler(document["targets"]))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise UserError(f"{path} does not have a mean and a deviation for each column") from error


def _parse_scaler(fields: Any) -> StandardScaler:
    """One of them, as it is written."""
    mean, deviation = (tuple(map(float, fields[name])) for name in ("mean", "deviation"))
    if len(mean) != len(deviation) or not mean or not all(map(math.isfinite, (*mean, *deviation))):
        raise ValueError("not a number for each column")
    if min(deviation) <= 0:
        raise ValueError("a deviation is more than 0")
    return StandardScaler(mean, deviation)


class RegressionBatch(NamedTuple):
    """What a regressor takes: B series, right-padded with zeros."""

    source: Tensor  # B,S,I
    lengths: Tensor  # B
    target: Tensor  # B,S,O

    def to(self, device: torch.device) -> RegressionBatch:
        """The same on another device."""
        return RegressionBatch(*(tensor.to(device, non_blocking=True) for tensor in self))

    @property
    def num_rows(self) -> int:
        """The number of series."""
        return len(self.source)

    @property
    def num_targets(self) -> int:
        """What the loss is a mean over: the numbers to be found."""
        return self.num_tokens * self.target.shape[2]

    @property
    def num_tokens(self) -> int:
        """What speed is measured in: steps of time."""
        return int(self.lengths.sum())

    def split_into(self, count: int) -> list[RegressionBatch]:
        """The same series in `count` batches, or as many as there are series."""
        return [RegressionBatch(*(tensor[cut] for tensor in self)) for cut in make_even_slices(self.num_rows, count)]


class RegressionDataset:
    """Series in the scale of the training data, all in memory; one without targets has zeros for them."""

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
        found = hashlib.sha256(self.sizes.tobytes())
        for table in (*self.source, *self.target):
            found.update(np.ascontiguousarray(table).data)
        self.fingerprint = found.hexdigest()

    def __len__(self) -> int:
        return len(self.source)

    def make_batch(self, rows: Indices, seed: int = 0) -> RegressionBatch:
        """The series at `rows`; nothing varies from one look to the next."""
        lengths = torch.from_numpy(self.sizes[rows].astype(np.int64))
        return RegressionBatch(_pad_tables(self.source, rows), lengths, _pad_tables(self.target, rows))

    def release_memory(self) -> None:
        """Everything is in memory, and stays there."""


def _pad_tables(tables: Sequence[Table], rows: Indices) -> Tensor:
    """Some tables in one, zeros behind each."""
    chosen = [tables[row] for row in rows.tolist()]
    found = np.zeros((len(chosen), max(map(len, chosen)), chosen[0].shape[1]), dtype=np.float32)
    for index, own in enumerate(chosen):
        found[index, : len(own)] = own
    return torch.from_numpy(found)
