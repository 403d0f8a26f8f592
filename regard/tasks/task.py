"""What training asks of a task: which examples there are, how good a model is at them, and who uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from regard.data.loader import Source
from regard.plot import Line, Overlay, Track
from regard.recipes import Recipe
from regard.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Sample(Protocol):
    """An example of the dev set as the model does it now."""

    def told(self) -> dict[str, str]:
        """What was asked, what would be right, and what the model made of it."""
        ...

    def picture(self) -> Figure | None:
        """Where the model looked, if it looks."""
        ...


class Validation(NamedTuple):
    """What a model is worth on the dev set."""

    loss: float
    figures: Mapping[str, float]  # by name
    measure: str  # the one of them that says which model is the best: the higher the better
    samples: Sequence[Sample] = ()

    @property
    def score(self) -> float:
        """How good the model is."""
        return self.figures[self.measure]


Validate = Callable[[Any, torch.device], Validation]  # leaves the model as it was; takes nothing from random generators
OnBest = Callable[[Any, torch.device], None]  # runs after each new best validation; leaves the model likewise


class Job(NamedTuple):
    """All that a trainer needs of a task."""

    run: Run
    config: Recipe  # with nothing left open
    source: Source[Any]
    validate: Validate
    sizes: tuple[int, int]  # of the vocabularies: what is read, and what is written or chosen from
    save: Callable[[Path], None]  # writes the vocabularies into a folder
    about: str  # the examples, in words
    on_best: OnBest | None = None


class Prediction(Protocol):
    """What a model makes of one input."""

    def line(self) -> str:
        """In one line, for a pipe."""
        ...

    def document(self) -> dict[str, Any]:
        """All of it, as JSON can hold it, the weights included."""
        ...

    def looks(self) -> list[Line]:
        """What the model looked at: words with their weights; nothing where it does not look."""
        ...

    def overlay(self) -> Overlay | None:
        """Where in an image the model looked for each word, if it looked at one."""
        ...


class Predictor(Protocol):
    """A trained model at work."""

    def predict(self, inputs: Sequence[Any]) -> Sequence[Prediction]:
        """A prediction for each input, in order."""
        ...

    def read(self, lines: Iterable[str]) -> Iterator[Any]:
        """The inputs that the lines of a pipe hold, each as soon as it is there."""
        ...

    def inputs(self, path: Path) -> Iterator[Any]:
        """The inputs that a file holds, also one that says what is right."""
        ...

    def asked(self, given: Any) -> Any:
        """The input that a stranger's JSON holds, checked; a file of this machine is none."""
        ...

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Figures on data that says what is right."""
        ...


class Asked(NamedTuple):
    """An input, and what is right."""

    input: Any
    answer: str
    right: Any = None  # the same, where it is more than text


class Corpus(NamedTuple):
    """Embedded data of a task, written to a folder, and what makes a recipe small enough for it."""

    train: Sequence[Path]
    dev: Sequence[Path]
    test: Sequence[Path]
    changes: Mapping[str, Any]  # dotted keys, which one recipe of the task or another may lack

    def fitting(self, recipe: Recipe) -> dict[str, Any]:
        """The changes that a recipe has keys for."""
        dotted = {key: key.split(".", 1) for key in self.changes}
        return {key: self.changes[key] for key, (section, name) in dotted.items() if name in recipe[section]}


class Task(NamedTuple):
    """A kind of work that a recipe names as its `task`."""

    data: type  # what its recipes' `data` section is read as …
    text: type  # … and `text`
    prepared: Callable[[Run, Recipe, bool], Job]  # a run, its recipe, and whether it goes on
    load: Callable[..., Any]  # a run -> what works with its best model, a `Predictor` or a `Translator`
    dev: Callable[[Run], Sequence[Asked]]  # what a run was validated on
    embedded: Callable[[Path], Corpus] | None = None  # writes data of its own into a folder
    tracks: Callable[[Asked, Any], Sequence[Track]] | None = None  # what is right and a prediction, as curves over time
