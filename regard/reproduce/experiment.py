"""What an experiment is: a paper's claims, the runs that they take, what is measured, and what would bear them out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from regard.recipes import Recipe, override, read
from regard.reproduce.verdict import Rule

if TYPE_CHECKING:
    from regard.reproduce.lab import Lab

APART = 100  # seeds between one time and the next
Values = Mapping[str, Any]  # what was measured, by name: numbers, and lists of points for curves


@dataclass(frozen=True)
class Training:
    """One model to train: a recipe, the dotted keys that are changed in it, and the name of a corpus."""

    recipe: str
    corpus: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> Recipe:
        """The recipe as it is trained."""
        return override(known(self.recipe), self.changes)

    @property
    def name(self) -> str:
        """The recipe, and a digest of all that makes the run: experiments that ask for the same share it."""
        return f"{self.recipe}-{digest(self.config(), self.corpus)}"

    @property
    def seed(self) -> int:
        """Of weights, order and noise."""
        return int(self.config()["training"]["seed"])

    def again(self, time: int) -> Training:
        """The same with another seed, far from those of ensembles."""
        return replace(self, changes={**self.changes, "training.seed": self.seed + APART * time})


@dataclass(frozen=True)
class Row:
    """A line of the table: models (several are an ensemble), how they are asked, and what the paper found."""

    name: str
    trainings: Sequence[Training] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, float] = field(default_factory=dict)

    def again(self, time: int) -> Row:
        """The row trained once more, with other seeds; time 0 is the row itself."""
        return replace(self, trainings=[training.again(time) for training in self.trainings]) if time else self


Whose = Literal["paper", "ours", "definition"]  # who claims it; or it follows from what is compared


@dataclass(frozen=True)
class Claim:
    """A sentence, and the rule that says of the figures whether it holds."""

    text: str
    rule: Rule
    whose: Whose = "paper"


@dataclass(frozen=True)
class Bars:
    """A picture: one measure, a bar for each row."""

    measure: str
    title: str


@dataclass(frozen=True)
class Curves:
    """A picture: a curve for each row that has points under the name of the measure."""

    measure: str
    title: str
    across: str
    up: str
    logarithmic: bool = False


@dataclass(frozen=True)
class Experiment:
    """One comparison of a paper."""

    name: str
    title: str
    source: str  # which paper, which table or figure, on which data
    about: str  # what is compared, and how the small scale differs
    rows: Callable[[str], list[Row]]  # of a scale
    measure: Callable[[Lab, Row], Values]
    columns: Sequence[str]  # the measures that the table has
    claims: Sequence[Claim]
    charts: Sequence[Bars | Curves] = ()
    timed: bool = False  # seconds are among what is measured, so that nothing else may run beside it
    minutes: float = 1.0  # of one CPU core, at the small scale, where no run is there yet


@cache
def known(recipe: str) -> Recipe:
    """A recipe, read once for the many trainings that change it."""
    return read(recipe)


def digest(*made_of: Any) -> str:
    """A short name for what something was made of."""
    return hashlib.sha256(json.dumps(made_of, sort_keys=True, default=str).encode()).hexdigest()[:10]
