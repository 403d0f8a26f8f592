"""Several models at once: one alone does not fill a GPU, nor all the cores of a processor."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from regard.console import say
from regard.reproduce.experiment import Experiment, Row, Training
from regard.reproduce.lab import Lab, Measure
from regard.training.signals import Interrupted, install


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
        side_by_side(
            {one.name: partial(trained, lab, one, logs / f"{one.name}.log", jobs) for one in missing}, lab, jobs
        )
    if asked:
        say(f"{len(asked)} models to measure, {jobs} at a time")
        each = {name: partial(measured, lab, some, logs / f"{name}.log", jobs) for name, some in asked.items()}
        side_by_side(each, lab, jobs)


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


def side_by_side(tasks: Mapping[str, Callable[[], None]], lab: Lab, jobs: int) -> None:
    """Calls, each in a process of its own, so many at a time; each is named by a run.

    Where one fails, or all are asked to stop, what has begun comes to its end, and nothing else begins.
    """
    context = processes()
    stopped = context.Event()
    with (
        asked_to_stop(),
        ProcessPoolExecutor(jobs, context, remember, (stopped,), max_tasks_per_child=1) as pool,
    ):
        begun = {pool.submit(unless_stopped, task): name for name, task in tasks.items()}
        try:
            for count, ended in enumerate(as_completed(begun), 1):
                ended.result()
                say(f"{count}/{len(tasks)}: {lab.out / 'runs' / begun[ended]}")
        except BaseException:
            stopped.set()  # one more than there are processes is on its way already
            for waiting in begun:
                waiting.cancel()
            raise


def processes() -> BaseContext:
    """Where they come from: one that has only imported everything, so that none has to.

    A fork of this one would have the locks of threads, and not the threads. Where nothing can be forked, each imports.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@contextmanager
def asked_to_stop() -> Iterator[None]:
    """Ctrl-C comes to all processes by itself; SIGTERM is passed on. The others save what they have."""

    def passed_on(number: int, frame: FrameType | None) -> None:
        for other in multiprocessing.active_children():
            other.terminate()
        raise Interrupted(None, number)

    before = install({signal.SIGTERM: passed_on})
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Interrupted(None, signal.SIGINT) from stop
    except Interrupted as stop:
        raise Interrupted(None, stop.signal_number) from stop
    finally:
        install(before)


STOPPED: list[Any] = []  # of a process that works for another: what says that nothing is to begin any more


def remember(stopped: Any) -> None:
    """Before anything else."""
    STOPPED.append(stopped)


def unless_stopped(task: Callable[[], None]) -> None:
    """Does it, unless nothing is to begin any more."""
    if not STOPPED[0].is_set():
        task()


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
