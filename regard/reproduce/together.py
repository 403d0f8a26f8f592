"""Several models at once: one alone does not fill a GPU, nor all the cores of a processor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import torch

from regard.console import say
from regard.reproduce.experiment import Experiment, Row, Training
from regard.reproduce.lab import Lab, Measure
from regard.reproduce.processes import side_by_side


def together(experiments: Sequence[Experiment], lab: Lab, seeds: int, jobs: int) -> None:
    """Trains what is missing for all of these experiments, so many at a time, each with so many seeds; then measures.

    An experiment that measures seconds is left to whoever asks for it next: nothing may run beside it.
    """
    wanted = needed(experiments, lab, seeds)
    missing, asked = [one for one in wanted if not lab.has(one)], questions(experiments, lab, seeds)
    for corpus in dict.fromkeys(one.corpus for one in wanted if missing or asked):
        lab.corpus(corpus)  # before anybody reads it, and once
    logs = lab.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    if missing:
        say(f"{len(missing)} models to train, {jobs} at a time; what they say is in {logs}")
        each = {one.name: partial(trained, lab, one, logs / f"{one.name}.log", jobs) for one in missing}
        side_by_side(each, jobs, counted(lab, len(each)))
    if asked:
        say(f"{len(asked)} models to measure, {jobs} at a time")
        each = {name: partial(measured, lab, some, logs / f"{name}.log", jobs) for name, some in asked.items()}
        side_by_side(each, jobs, counted(lab, len(each)))


def counted(lab: Lab, total: int) -> Callable[[str], None]:
    """Says of each run that it has ended, and how many have."""
    count = iter(range(1, total + 1))
    return lambda name: say(f"{next(count)}/{total}: {lab.out / 'runs' / name}")


def needed(experiments: Iterable[Experiment], lab: Lab, seeds: int) -> Sequence[Training]:
    """The models of all rows that are not measured yet, each once."""
    models = {
        training.name: training
        for experiment in experiments
        for row in experiment.rows(lab.scale)
        for one in (row.again(time) for time in range(seeds))
        if not lab.knows(experiment.measure, one)
        for training in one.trainings
    }
    return list(models.values())


def questions(experiments: Iterable[Experiment], lab: Lab, seeds: int) -> dict[str, list[tuple[Measure, Row]]]:
    """What is to be measured, by the run that it is kept beside: one process asks all that is of one run."""
    asked: dict[str, list[tuple[Measure, Row]]] = {}
    for experiment in experiments:
        rows = [] if experiment.timed else [row for row in experiment.rows(lab.scale) if row.trainings]
        for row in (row.again(time) for row in rows for time in range(seeds)):
            if not lab.knows(experiment.measure, row):
                asked.setdefault(row.trainings[0].name, []).append((experiment.measure, row))
    return asked


def trained(lab: Lab, training: Training, log: Path, jobs: int) -> None:
    """Trains one model."""
    settle(log, jobs)
    lab.trained(training)


def measured(lab: Lab, asked: Sequence[tuple[Measure, Row]], log: Path, jobs: int) -> None:
    """Measures what is asked of one run; the lab keeps it."""
    settle(log, jobs)
    for measure, row in asked:
        lab.measured(measure, row)


def settle(log: Path, jobs: int) -> None:
    """What this process says goes to a file, and the others have their part of the processor."""
    with log.open("a", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
