"""Several models trained at once: one alone does not fill a GPU, nor all the cores of a processor."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from regard.console import say
from regard.reproduce.experiment import Experiment, Training
from regard.reproduce.lab import Lab


def together(experiments: Iterable[Experiment], lab: Lab, seeds: int, jobs: int) -> None:
    """Trains what is missing for all of these experiments, so many at a time, each with so many seeds."""
    missing = [training for training in needed(experiments, lab.scale, seeds) if not lab.has(training)]
    if not missing:
        return
    for corpus in dict.fromkeys(training.corpus for training in missing):
        lab.corpus(corpus)  # before anybody reads it, and once
    logs = lab.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    say(f"{len(missing)} models to train, {jobs} at a time; what they say is in {logs}")
    # a fork would have the locks of threads, and not the threads
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        begun = {pool.submit(alone, lab, one, logs / f"{one.name}.log", jobs): one for one in missing}
        for count, ended in enumerate(as_completed(begun), 1):
            if ended.exception() is not None:
                for waiting in begun:
                    waiting.cancel()  # what has begun is finished, nothing else begins
            ended.result()
            say(f"{count}/{len(missing)}: {lab.folder(begun[ended])}")


def needed(experiments: Iterable[Experiment], scale: str, seeds: int) -> Sequence[Training]:
    """All models of all rows, each once."""
    rows = [row.again(time) for experiment in experiments for row in experiment.rows(scale) for time in range(seeds)]
    return list({training.name: training for row in rows for training in row.trainings}.values())


def alone(lab: Lab, training: Training, log: Path, jobs: int) -> None:
    """Trains one model in a process of its own; what it says goes to a file."""
    with log.open("a", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    lab.trained(training)
