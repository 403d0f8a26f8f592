"""Calls in processes of their own, so many at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import torch

from regard.console import log_message
from regard.errors import UserError
from regard.reproduce.experiment import Experiment, ExperimentRow, TrainingSpec
from regard.reproduce.workspace import Measure, Workspace
from regard.training.signals import Interrupted, set_signal_handlers

if TYPE_CHECKING:  # not everywhere is there a server of forks
    from multiprocessing.context import ForkServerContext, SpawnContext


def run_in_processes(tasks: Mapping[str, Callable[[], None]], jobs: int, on_finished: Callable[[str], None]) -> None:
    """Calls each in a process of its own, so many at a time; tells whose has ended.

    Where one fails, or all are asked to stop, what has begun comes to its end, and nothing else begins.
    """
    waiting, running = iter(tasks.items()), list[TaskProcess]()
    with _forward_signals(running), _join_on_exit(running):
        context = choose_process_context()
        while True:
            for name, task in islice(waiting, jobs - len(running)):
                running.append(TaskProcess(context, name))
                running[-1].start(task)
            if not running:
                return
            heard = wait([place for one in running for place in (one.connection, one.process.sentinel)])
            for one in [one for one in running if one.connection in heard or one.process.sentinel in heard]:
                one.finish()
                running.remove(one)
                on_finished(one.name)


class TaskProcess:
    """One process, which is told what to do only once it is known to be running.

    Whoever is asked to stop before that leaves a process that hears nothing, and ends.
    """

    def __init__(self, context: ForkServerContext | SpawnContext, name: str) -> None:
        self.name = name
        self.connection, self.worker_connection = context.Pipe()
        self.process: BaseProcess = context.Process(target=_run_received_task, args=(self.worker_connection,))
        self.was_signalled = False  # to stop

    def start(self, task: Callable[[], None]) -> None:
        """Starts it, and says what it is to do."""
        self.process.start()
        self.worker_connection.close()
        with suppress(BrokenPipeError):  # it has ended already, which `end` will say
            self.connection.send(task)

    def finish(self) -> None:
        """When it has answered, or ended. Whatever went wrong there goes wrong here."""
        wrong: BaseException | None = None
        with suppress(EOFError, OSError):  # it has ended without an answer
            wrong = self.connection.recv() if self.connection.poll() else None
        self.close_and_join()
        if wrong is not None:
            raise wrong
        if self.process.exitcode:
            raise UserError(f"{self.name}: its process ended with the status {self.process.exitcode}")

    def forward_signal(self, signal_number: int) -> None:
        """Pass a signal on: as SIGTERM the first time, so that training saves; Ctrl-C again stops it at once."""
        if self.process.pid is not None and self.process.is_alive():
            again = self.was_signalled and signal_number == signal.SIGINT
            os.kill(self.process.pid, signal.SIGINT if again else signal.SIGTERM)
            self.was_signalled = True

    def close_and_join(self) -> None:
        """Waits until it has ended, if it began at all; nobody listens to it any more."""
        self.connection.close()
        if self.process.pid is not None:
            self.process.join()


def _run_received_task(connection: Connection) -> None:
    """What such a process does: the one thing that it is told. It answers with what went wrong, or None."""
    try:
        task = connection.recv()
    except EOFError:  # nothing is to begin any more
        return
    wrong: BaseException | None = None
    try:
        task()
    except BaseException as error:
        wrong = error
    try:
        connection.send(None if wrong is None else _make_picklable(wrong))
    except BrokenPipeError:  # something else went wrong, or all were to stop: nobody listens any more
        if wrong is not None:
            traceback.print_exception(wrong)


def _make_picklable(error: BaseException) -> BaseException:
    """An error with its traceback, as it comes whole out of another process: as its words alone, if need be."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:  # whatever its class does
        words = RuntimeError(f"{type(error).__name__}: {error}")
        words.add_note(error.__notes__[-1])
        return words
    return error


def choose_process_context() -> ForkServerContext | SpawnContext:
    """Where they come from: one that has only imported everything, so that none has to.

    A fork of this one would have the locks of threads, and not the threads. Where nothing can be forked, each imports.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["regard.group", "regard.reproduce.workspace"])
    return context


@contextmanager
def _forward_signals(running: Sequence[TaskProcess]) -> Iterator[None]:
    """Pass each signal on to the running processes: training saves a checkpoint, and stops at once on Ctrl-C again."""

    def forward_to_all(number: int, frame: FrameType | None) -> None:
        for one in running:
            one.forward_signal(number)
        raise Interrupted(None, number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    before = set_signal_handlers(dict.fromkeys(numbers, forward_to_all))
    try:
        yield
    finally:
        set_signal_handlers(before)


@contextmanager
def _join_on_exit(running: Sequence[TaskProcess]) -> Iterator[None]:
    """However this ends, what has begun ends first."""
    try:
        yield
    finally:
        for one in running:
            one.close_and_join()


def train_and_measure_parallel(experiments: Sequence[Experiment], workspace: Workspace, seeds: int, jobs: int) -> None:
    """Trains what is missing for all of these experiments, so many at a time, each with so many seeds; then measures.

    An experiment that measures seconds is left to whoever asks for it next: nothing may run beside it.
    """
    wanted = _find_missing_trainings(experiments, workspace, seeds)
    missing, asked = (
        [one for one in wanted if not workspace.is_trained(one)],
        _find_missing_measurements(experiments, workspace, seeds),
    )
    for corpus in dict.fromkeys(one.corpus for one in wanted if missing or asked):
        workspace.get_corpus(corpus)  # before anybody reads it, and once
    logs = workspace.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    if missing:
        log_message(f"{len(missing)} models to train, {jobs} at a time; what they say is in {logs}")
        each = {one.name: partial(_train_in_worker, workspace, one, logs / f"{one.name}.log", jobs) for one in missing}
        run_in_processes(each, jobs, _make_progress_logger(workspace, len(each)))
    if asked:
        log_message(f"{len(asked)} models to measure, {jobs} at a time")
        each = {
            name: partial(_measure_in_worker, workspace, some, logs / f"{name}.log", jobs)
            for name, some in asked.items()
        }
        run_in_processes(each, jobs, _make_progress_logger(workspace, len(each)))


def _make_progress_logger(workspace: Workspace, total: int) -> Callable[[str], None]:
    """Says of each run that it has ended, and how many have."""
    count = iter(range(1, total + 1))
    return lambda name: log_message(f"{next(count)}/{total}: {workspace.out / 'runs' / name}")


def _find_missing_trainings(
    experiments: Iterable[Experiment], workspace: Workspace, seeds: int
) -> Sequence[TrainingSpec]:
    """The models of all rows that are not measured yet, each once."""
    models = {
        training.name: training
        for experiment in experiments
        for row in experiment.rows(workspace.scale)
        for one in (row.with_seed_offset(time) for time in range(seeds))
        if not workspace.is_measured(experiment.measure, one)
        for training in one.trainings
    }
    return list(models.values())


def _find_missing_measurements(
    experiments: Iterable[Experiment], workspace: Workspace, seeds: int
) -> dict[str, list[tuple[Measure, ExperimentRow]]]:
    """What is to be measured, by the run that it is kept beside: one process asks all that is of one run."""
    asked: dict[str, list[tuple[Measure, ExperimentRow]]] = {}
    for experiment in experiments:
        rows = [] if experiment.measures_time else [row for row in experiment.rows(workspace.scale) if row.trainings]
        for row in (row.with_seed_offset(time) for row in rows for time in range(seeds)):
            if not workspace.is_measured(experiment.measure, row):
                asked.setdefault(row.trainings[0].name, []).append((experiment.measure, row))
    return asked


def _train_in_worker(workspace: Workspace, training: TrainingSpec, log: Path, jobs: int) -> None:
    """Trains one model."""
    _redirect_output(log, jobs)
    workspace.train_or_resume(training)


def _measure_in_worker(
    workspace: Workspace, measurements: Sequence[tuple[Measure, ExperimentRow]], log: Path, jobs: int
) -> None:
    """Measures what is asked of one run; the lab keeps it."""
    _redirect_output(log, jobs)
    for measure, row in measurements:
        workspace.measure_row(measure, row)


def _redirect_output(log: Path, jobs: int) -> None:
    """What this process says goes to a file, and the others have their part of the processor."""
    with log.open("a", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
