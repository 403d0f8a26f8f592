"""Data classes of experiments: claims of a paper, the models to train, and the metrics that decide the claims."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from regard.paths import read_package_yaml
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


METRICS = {
    name: Metric(**fields | {scale: SeedDeviation(**fields.get(scale, {})) for scale in SCALES})
    for name, fields in read_package_yaml("regard.reproduce", "metrics.yaml").items()
}


def find_metric(name: str) -> Metric:
    """Return a metric; one without an entry in `metrics.yaml` has its name as title and no deviation."""
    return METRICS.get(name, Metric(name))


PRESETS: dict[str, dict[str, Any]] = read_package_yaml("regard.reproduce", "presets.yaml")  # recipe keys by corpus
read_recipe_cached = cache(read_recipe)  # many trainings change the same recipe


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


def fit_recipe(recipe: str, corpus: str, changes: Mapping[str, Any]) -> TrainingSpec:
    """Return the training of a recipe with the presets of a corpus; `changes` take precedence."""
    config = read_recipe_cached(recipe)
    presets = PRESETS.get(corpus, {})
    if config["model"]["kind"] == "transformer":
        presets = {**presets, **PRESETS.get(f"{corpus}-transformer", {})}
    dotted = {key: key.split(".") for key in presets}
    applicable = {key: presets[key] for key, (section, name) in dotted.items() if name in config[section]}
    return TrainingSpec(recipe, corpus, {**applicable, **changes})


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


def compute_digest(*parts: Any) -> str:
    """Return a short digest of JSON-compatible values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:10]
