"""What an experiment is: a paper's claims, the runs that they take, what is measured, and what would bear them out."""

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

SEED_STRIDE = 100  # seeds between one time and the next
MetricValues = Mapping[str, Any]  # what was measured, by name: numbers, and lists of points for curves


@dataclass(frozen=True)
class TrainingSpec:
    """One model to train: a recipe, the dotted keys that are changed in it, and the name of a corpus."""

    recipe: str
    corpus: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def make_config(self) -> Recipe:
        """The recipe as it is trained."""
        return override(read_recipe_cached(self.recipe), self.changes)

    @property
    def name(self) -> str:
        """The recipe, and a digest of all that makes the run: experiments that ask for the same share it."""
        return f"{self.recipe}-{compute_digest(self.make_config(), self.corpus)}"

    @property
    def seed(self) -> int:
        """Of weights, order and noise."""
        return int(self.make_config()["training"]["seed"])

    def with_seed_offset(self, repetition: int) -> TrainingSpec:
        """The same with another seed, far from those of ensembles."""
        return replace(self, changes={**self.changes, "training.seed": self.seed + SEED_STRIDE * repetition})


@dataclass(frozen=True)
class ExperimentRow:
    """A line of the table: models (several are an ensemble), how they are asked, and what the paper found."""

    name: str
    trainings: Sequence[TrainingSpec] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, float] = field(default_factory=dict)

    def with_seed_offset(self, repetition: int) -> ExperimentRow:
        """The row trained once more, with other seeds; time 0 is the row itself."""
        return (
            replace(self, trainings=[training.with_seed_offset(repetition) for training in self.trainings])
            if repetition
            else self
        )


ClaimOrigin = Literal["paper", "ours", "definition"]  # who claims it; or it follows from what is compared


@dataclass(frozen=True)
class Claim:
    """A sentence, and the rule that says of the figures whether it holds."""

    text: str
    rule: ClaimRule
    origin: ClaimOrigin = "paper"


@dataclass(frozen=True)
class BarChart:
    """A picture: one measure, a bar for each row."""

    metric: str
    title: str


@dataclass(frozen=True)
class CurveChart:
    """A picture: a curve for each row that has points under the name of the measure."""

    metric: str
    title: str
    x_label: str
    y_label: str
    log_scale: bool = False


@dataclass(frozen=True)
class Experiment:
    """One comparison of a paper."""

    name: str
    title: str
    source: str  # which paper, which table or figure, on which data
    description: str  # what is compared, and how the small scale differs
    rows: Callable[[str], list[ExperimentRow]]  # of a scale
    measure: Callable[[Workspace, ExperimentRow], MetricValues]
    columns: Sequence[str]  # the measures that the table has
    claims: Sequence[Claim]
    charts: Sequence[BarChart | CurveChart] = ()
    measures_time: bool = False  # seconds are among what is measured, so that nothing else may run beside it
    cpu_minutes: float = 1.0  # of one CPU core, at the small scale, where no run is there yet


@cache
def read_recipe_cached(recipe: str) -> Recipe:
    """A recipe, read once for the many trainings that change it."""
    return read_recipe(recipe)


def compute_digest(*parts: Any) -> str:
    """A short name for what something was made of."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:10]
