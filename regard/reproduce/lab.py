"""Where runs are trained, or found, and what was measured of them is kept."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from regard.console import say
from regard.reproduce.corpora import Corpus, located, prepared
from regard.reproduce.experiment import Row, Training, Values, digest
from regard.reproduce.machine import hardware
from regard.runs import Run
from regard.runs.summary import summary
from regard.training import train
from regard.version import VERSION

Measure: TypeAlias = "Callable[[Lab, Row], Values]"


class Lab:
    """A folder: `corpora`, `runs`, and a folder for the results of each scale."""

    def __init__(self, out: Path, scale: str) -> None:
        self.out = out
        self.scale = scale

    @property
    def results(self) -> Path:
        """Where tables and pages are."""
        return self.out / self.scale

    def corpus(self, name: str) -> Corpus:
        """The files of a corpus, which are made where they are not there."""
        return prepared(name, self.out / "corpora")

    def folder(self, training: Training) -> Path:
        """Where a run is, or will be."""
        return self.out / "runs" / training.name

    def trained(self, training: Training) -> Path:
        """The folder of a finished run: as it is there, gone on with, or trained from the beginning."""
        folder = self.folder(training)
        if self.has(training):
            return folder
        if Run(folder).exists and Run(folder).steps():
            say(f"{folder} goes on from step {Run(folder).newest()}")
            train(training.recipe, None, folder, resume=True)
        else:
            corpus = self.corpus(training.corpus)
            train(training.recipe, corpus.train, folder, dev=corpus.dev, **training.changes)
        return folder

    def has(self, training: Training) -> bool:
        """Whether a run is there, and finished."""
        return self.folder(training).is_dir() and summary(self.folder(training)).finished

    def measured(self, measure: Measure, row: Row) -> Values:
        """What a measure finds of a row; of a row with runs it is kept beside the first of them.

        What was measured needs no weights any more: checkpoints may be gone.
        """
        if not row.trainings:
            return measure(self, row)
        path = self.kept(measure, row)
        if not self.knows(measure, row):
            for training in row.trainings:
                self.trained(training)
            values = measure(self, row)
            path.parent.mkdir(exist_ok=True)
            beside = path.with_name(f".{path.name}.{os.getpid()}.part")
            told = {"of": made_of(measure, row), "values": values, "hardware": hardware()}
            beside.write_text(json.dumps(told, ensure_ascii=False), encoding="utf-8")
            beside.replace(path)
        found: Values = json.loads(path.read_text(encoding="utf-8"))["values"]
        return found

    def knows(self, measure: Measure, row: Row) -> bool:
        """Whether a row with runs was measured already."""
        return bool(row.trainings) and self.kept(measure, row).is_file()

    def kept(self, measure: Measure, row: Row) -> Path:
        """Where that is, once it was measured."""
        return self.folder(row.trainings[0]) / "measures" / f"{digest(made_of(measure, row))}.json"

    def machine(self, measure: Measure, row: Row) -> dict[str, Any]:
        """What a row was measured on: this machine, but where it was kept."""
        kept = row.trainings and json.loads(self.kept(measure, row).read_text(encoding="utf-8"))
        return dict(kept.get("hardware", {})) if kept else hardware()

    def command(self, training: Training) -> str:
        """What trains the same by hand."""
        corpus = located(training.corpus, self.out / "corpora")
        dev = [] if corpus.dev is None else ["--dev", *corpus.dev]
        changes = [f"{key}={plain(value)}" for key, value in training.changes.items()]
        where = ["--recipe", training.recipe, "--out", self.folder(training)]
        return in_a_shell(["regard", "train", *corpus.train, *dev, *where, *changes])


def made_of(measure: Measure, row: Row) -> list[Any]:
    """All that makes what is measured of a row with runs."""
    names = [training.name for training in row.trainings]
    return [VERSION, measure.__module__, measure.__qualname__, names, dict(row.options)]


def plain(value: Any) -> str:
    """A value as it is written on the command line."""
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")


def in_a_shell(words: Sequence[object]) -> str:
    """Words as a shell takes them."""
    return shlex.join(map(str, words))
