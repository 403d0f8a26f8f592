"""Data classes of experiments: claims of a paper, the models to train, the metrics, and the rules that decide."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from regard.recipes import Recipe, override, read_recipe
from regard.reproduce.significance import ClaimRule

if TYPE_CHECKING:
    from regard.reproduce.workspace import Workspace

SEED_STRIDE = 100  # between the seeds of two repetitions
MetricValues = Mapping[str, Any]  # by name: numbers, and lists of points for curves


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
        return (
            replace(self, trainings=[training.with_seed_offset(repetition) for training in self.trainings])
            if repetition
            else self
        )


ClaimOrigin = Literal["paper", "ours", "definition"]  # definition: it follows from the compared models


@dataclass(frozen=True)
class Claim:
    """A claim, and the rule that decides it from the measurements."""

    text: str
    rule: ClaimRule
    origin: ClaimOrigin = "paper"


@dataclass(frozen=True)
class BarChart:
    """A bar chart of one metric, with a bar for each row."""

    metric: str
    title: str


@dataclass(frozen=True)
class CurveChart:
    """A chart with a curve for each row that has points of the metric."""

    metric: str
    title: str
    x_label: str
    y_label: str
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
    charts: Sequence[BarChart | CurveChart] = ()
    measures_time: bool = False  # True: it must not run in parallel with anything else
    cpu_minutes: float = 1.0  # of one CPU core at the small scale, with all trainings


@cache
def read_recipe_cached(recipe: str) -> Recipe:
    """Read a recipe once for the many trainings that change it."""
    return read_recipe(recipe)


def compute_digest(*parts: Any) -> str:
    """Return a short digest of JSON-compatible values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:10]
