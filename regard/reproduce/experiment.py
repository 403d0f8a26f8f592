"""Data classes of experiments: claims of a paper, the models to train, and the metrics that decide the claims."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from regard.recipes.recipe import Recipe, override, read_recipe

if TYPE_CHECKING:
    from regard.reproduce.workspace import Workspace

SCALES = ("small", "full")
SEED_STRIDE = 100  # between the seeds of two repetitions
MetricValues = Mapping[str, Any]  # by name: numbers, and lists of points for curves


class SeedDeviation(NamedTuple):
    """Standard deviation between seeds of a model: an absolute part, and a part relative to the value."""

    absolute: float = 0.0
    relative: float = 0.0

    def compute_at(self, value: float) -> float:
        """Return the standard deviation at a value."""
        return self.absolute + self.relative * abs(value)


class Metric(NamedTuple):
    """Title and number format of a metric, and its typical deviations between seeds at the two scales."""

    title: str
    number_format: str = ".3g"
    small: SeedDeviation = SeedDeviation()
    full: SeedDeviation = SeedDeviation()


_RELATIVE_5, _RELATIVE_10, _RELATIVE_20 = (SeedDeviation(relative=relative) for relative in (0.05, 0.1, 0.2))
# Deviations of the small scale, translation and tagging: measured, see docs/reproduce.md. All others are estimates.
METRICS = {
    "bleu": Metric("BLEU", ".1f", SeedDeviation(6.5), SeedDeviation(0.3)),
    "replaced": Metric("BLEU, unk replaced", ".1f", SeedDeviation(9.6), SeedDeviation(0.3)),
    "perplexity": Metric("perplexity", ".2f", SeedDeviation(relative=0.13), SeedDeviation(relative=0.01)),
    "aer": Metric("AER", ".3f", SeedDeviation(0.083), SeedDeviation(0.005)),
    "accuracy": Metric("accuracy, %", ".1f", SeedDeviation(2.1), SeedDeviation(0.2)),
    "recall": Metric("copied, %", ".1f", SeedDeviation(2.0), SeedDeviation(2.0)),
    "r2": Metric("R²", ".3f", SeedDeviation(0.001), SeedDeviation(0.01)),
    "entropy": Metric("entropy, nats", ".2f", SeedDeviation(0.06), SeedDeviation(0.02)),
    "faint": Metric("weights < 0.01", ".0%", SeedDeviation(0.03), SeedDeviation(0.01)),
    "kept": Metric("long against short", ".0%", SeedDeviation(0.1), SeedDeviation(0.02)),
    "training_speed": Metric("trained tokens/s", ",.0f", _RELATIVE_20, _RELATIVE_5),
    "decoding_speed": Metric("written words/s", ",.0f", _RELATIVE_20, _RELATIVE_5),
    "parameters": Metric("parameters", ",.0f"),
    "error": Metric("error of the sum", ".3g", _RELATIVE_10, _RELATIVE_10),
    "gradient_kept": Metric("gradient kept", ".3g", _RELATIVE_5, _RELATIVE_5),
    "loss": Metric("loss", ".3g", _RELATIVE_5, _RELATIVE_5),
    "growth_operations": Metric("operations, times"),
    "growth_bytes": Metric("bytes, times"),
    "growth_seconds": Metric("seconds, times", ".3g", _RELATIVE_20, _RELATIVE_20),
}


@dataclass(frozen=True)
class TrainingSpec:
    """A model to train: a recipe, the dotted keys that are changed in it, and the name of a corpus."""

    recipe: str
    corpus: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def make_config(self) -> Recipe:
        """Return the recipe with the changes."""
        return override(read_recipe_cached(self.recipe), self.changes)

    @property
    def name(self) -> str:
        """Recipe name and a digest of config and corpus; experiments with the same training share its run."""
        return f"{self.recipe}-{compute_digest(self.make_config(), self.corpus)}"

    @property
    def seed(self) -> int:
        """Random seed of weights, data order and dropout."""
        return int(self.make_config()["training"]["seed"])

    def with_seed_offset(self, repetition: int) -> TrainingSpec:
        """Return the training with another seed, far from those of ensembles."""
        return replace(self, changes={**self.changes, "training.seed": self.seed + SEED_STRIDE * repetition})


@dataclass(frozen=True)
class ExperimentRow:
    """A row of the table: models (several are an ensemble), search options, and the published values."""

    name: str
    trainings: Sequence[TrainingSpec] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, float] = field(default_factory=dict)

    def with_seed_offset(self, repetition: int) -> ExperimentRow:
        """Return the row with other seeds; repetition 0 is the row itself."""
        if not repetition:
            return self
        return replace(self, trainings=[training.with_seed_offset(repetition) for training in self.trainings])


ClaimRule = Literal["higher", "lower", "above", "below", "similar", "most of gain"]
ClaimOrigin = Literal["paper", "ours", "definition"]  # definition: it follows from the compared models


@dataclass(frozen=True)
class Claim:
    """A claim about the values of a metric in some rows, and the rule that decides it (see `significance.py`)."""

    text: str
    rule: ClaimRule
    metric: str
    rows: Sequence[str]
    limit: float = 0.0  # of "above" and "below"; of "similar" the largest difference
    margin: float | None = None  # of the difference; None: that of the seeds
    origin: ClaimOrigin = "paper"


@dataclass(frozen=True)
class Chart:
    """A bar chart of a metric with a bar for each row; with an x axis, a chart with a curve for each row."""

    metric: str
    title: str
    x_label: str = ""
    y_label: str = ""
    log_scale: bool = False


@dataclass(frozen=True)
class Experiment:
    """A comparison of a paper."""

    name: str
    title: str
    source: str  # paper, table or figure, and data
    description: str  # compared models, and differences of the small scale
    rows: Callable[[str], list[ExperimentRow]]  # by scale
    measure: Callable[[Workspace, ExperimentRow], MetricValues]
    columns: Sequence[str]  # metrics in the table
    claims: Sequence[Claim]
    charts: Sequence[Chart] = ()
    measures_time: bool = False  # True: it must not run in parallel with anything else
    cpu_minutes: float = 1.0  # of one CPU core at the small scale, with all trainings


@cache
def read_recipe_cached(recipe: str) -> Recipe:
    """Read a recipe once for the many trainings that change it."""
    return read_recipe(recipe)


def compute_digest(*parts: Any) -> str:
    """Return a short digest of JSON-compatible values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:10]
