"""Train and measure models in parallel processes."""

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

if TYPE_CHECKING:  # not available on every platform
    from multiprocessing.context import ForkServerContext, SpawnContext


def run_in_processes(tasks: Mapping[str, Callable[[], None]], jobs: int, on_finished: Callable[[str], None]) -> None:
    """Run each task in a process, `jobs` at a time; call `on_finished` with the name of each.

    If one fails, or on a signal to stop, running tasks are finished and no other one is started.
    """
    pending, running = iter(tasks.items()), list[TaskProcess]()
    with _forward_signals(running), _join_on_exit(running):
        context = choose_process_context()
        while True:
            for name, task in islice(pending, jobs - len(running)):
                running.append(TaskProcess(context, name))
                running[-1].start(task)
            if not running:
                return
            ready = wait([handle for process in running for handle in (process.connection, process.process.sentinel)])
            for process in [
                process for process in running if process.connection in ready or process.process.sentinel in ready
            ]:
                process.finish()
                running.remove(process)
                on_finished(process.name)


class TaskProcess:
    """A process that receives its task only after it has started.

    If the program is asked to stop before that, the process receives nothing and exits.
    """

    def __init__(self, context: ForkServerContext | SpawnContext, name: str) -> None:
        self.name = name
        self.connection, self.worker_connection = context.Pipe()
        self.process: BaseProcess = context.Process(target=_run_received_task, args=(self.worker_connection,))
        self.was_signalled = False

    def start(self, task: Callable[[], None]) -> None:
        """Start the process and send its task."""
        self.process.start()
        self.worker_connection.close()
        with suppress(BrokenPipeError):  # it has exited already, which `finish` reports
            self.connection.send(task)

    def finish(self) -> None:
        """Wait for a process that has answered or exited; raise its error here."""
        error: BaseException | None = None
        with suppress(EOFError, OSError):  # it has exited without an answer
            error = self.connection.recv() if self.connection.poll() else None
        self.close_and_join()
        if error is not None:
            raise error
        if self.process.exitcode:
            raise UserError(f"{self.name}: the process exited with status {self.process.exitcode}")

    def forward_signal(self, signal_number: int) -> None:
        """Pass a signal on: as SIGTERM the first time, so that training saves; Ctrl-C again stops it at once."""
        if self.process.pid is not None and self.process.is_alive():
            is_repeated = self.was_signalled and signal_number == signal.SIGINT
            os.kill(self.process.pid, signal.SIGINT if is_repeated else signal.SIGTERM)
            self.was_signalled = True

    def close_and_join(self) -> None:
        """Close the connection and wait until the process has exited, if it was started."""
        self.connection.close()
        if self.process.pid is not None:
            self.process.join()


def _run_received_task(connection: Connection) -> None:
    """Run the task that is received, and send its error, or None."""
    try:
        task = connection.recv()
    except EOFError:  # the program is stopping
        return
    failure: BaseException | None = None
    try:
        task()
    except BaseException as error:
        failure = error
    try:
        connection.send(None if failure is None else _make_picklable(failure))
    except BrokenPipeError:  # after another error or a signal the parent has closed the connection
        if failure is not None:
            traceback.print_exception(failure)


def _make_picklable(error: BaseException) -> BaseException:
    """Return an error with its traceback that can be unpickled, as a RuntimeError if necessary."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:  # of any kind, from the class of the error
        plain_error = RuntimeError(f"{type(error).__name__}: {error}")
        plain_error.add_note(error.__notes__[-1])
        return plain_error
    return error


def choose_process_context() -> ForkServerContext | SpawnContext:
    """Return the multiprocessing context: a fork server that has imported PyTorch, so that workers need not.

    A fork of this process would have the locks of its threads, but not the threads. Without fork, each worker imports.
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
        for process in running:
            process.forward_signal(number)
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
    """Wait for all running processes, also after an error."""
    try:
        yield
    finally:
        for process in running:
            process.close_and_join()


def train_and_measure_parallel(experiments: Sequence[Experiment], workspace: Workspace, seeds: int, jobs: int) -> None:
    """Train all missing models of the experiments, `jobs` at a time, with `seeds` seeds; then measure them.

    Experiments that measure time are left out: nothing may run in parallel with them.
    """
    trainings = _find_missing_trainings(experiments, workspace, seeds)
    missing, measurements = (
        [training for training in trainings if not workspace.is_trained(training)],
        _find_missing_measurements(experiments, workspace, seeds),
    )
    for corpus in dict.fromkeys(training.corpus for training in trainings if missing or measurements):
        workspace.get_corpus(corpus)  # once, before workers read it
    logs = workspace.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    if missing:
        log_message(f"{len(missing)} models to train, {jobs} at a time; their logs are in {logs}")
        tasks = {
            training.name: partial(_train_in_worker, workspace, training, logs / f"{training.name}.log", jobs)
            for training in missing
        }
        run_in_processes(tasks, jobs, _make_progress_logger(workspace, len(tasks)))
    if measurements:
        log_message(f"{len(measurements)} models to measure, {jobs} at a time")
        tasks = {
            name: partial(_measure_in_worker, workspace, of_run, logs / f"{name}.log", jobs)
            for name, of_run in measurements.items()
        }
        run_in_processes(tasks, jobs, _make_progress_logger(workspace, len(tasks)))


def _make_progress_logger(workspace: Workspace, total: int) -> Callable[[str], None]:
    """Return a function that logs a finished run and the number of finished ones."""
    count = iter(range(1, total + 1))
    return lambda name: log_message(f"{next(count)}/{total}: {workspace.out / 'runs' / name}")


def _find_missing_trainings(
    experiments: Iterable[Experiment], workspace: Workspace, seeds: int
) -> Sequence[TrainingSpec]:
    """Return the models of all rows that are not measured yet, each once."""
    models = {
        training.name: training
        for experiment in experiments
        for row in experiment.rows(workspace.scale)
        for repetition in (row.with_seed_offset(seed_index) for seed_index in range(seeds))
        if not workspace.is_measured(experiment.measure, repetition)
        for training in repetition.trainings
    }
    return list(models.values())


def _find_missing_measurements(
    experiments: Iterable[Experiment], workspace: Workspace, seeds: int
) -> dict[str, list[tuple[Measure, ExperimentRow]]]:
    """Return missing measurements by the run that they are cached in; one process does all of a run."""
    missing: dict[str, list[tuple[Measure, ExperimentRow]]] = {}
    for experiment in experiments:
        rows = [] if experiment.measures_time else [row for row in experiment.rows(workspace.scale) if row.trainings]
        for row in (row.with_seed_offset(seed_index) for row in rows for seed_index in range(seeds)):
            if not workspace.is_measured(experiment.measure, row):
                missing.setdefault(row.trainings[0].name, []).append((experiment.measure, row))
    return missing


def _train_in_worker(workspace: Workspace, training: TrainingSpec, log: Path, jobs: int) -> None:
    _redirect_output(log, jobs)
    workspace.train_or_resume(training)


def _measure_in_worker(
    workspace: Workspace, measurements: Sequence[tuple[Measure, ExperimentRow]], log: Path, jobs: int
) -> None:
    _redirect_output(log, jobs)
    for measure, row in measurements:
        workspace.measure_row(measure, row)


def _redirect_output(log: Path, jobs: int) -> None:
    """Redirect the output of this process to a log file, and limit its threads."""
    with log.open("a", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
