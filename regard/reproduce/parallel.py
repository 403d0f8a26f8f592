"""Train and measure models in parallel processes, whose output goes to log files."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from regard.console import log_message
from regard.errors import UserError
from regard.reproduce.experiment import Experiment, ExperimentRow
from regard.reproduce.workspace import Measure, Workspace
from regard.training.trainer import Interrupted, StopSignals

SIGNAL_CHECK_SECONDS = 0.2


def run_in_processes(tasks: Mapping[str, Callable[[], object]], jobs: int, logs: Path) -> Iterator[str]:
    """Run each task in a process, `jobs` at a time, and yield the names of finished ones.

    If one fails, or on a signal to stop, running tasks are finished and no other one is started. The signal is
    forwarded as SIGTERM, on which training saves a checkpoint; Ctrl-C again stops at once.

    Args:
        tasks: Functions that can be pickled, by name.
        jobs: Number of processes at a time.
        logs: Folder of the output of each task, in NAME.log.
    """
    pending, running, failure = iter(tasks.items()), dict[str, BaseProcess](), ""
    stop, is_forwarded = StopSignals(), False
    with stop.install_handlers():
        try:
            while True:
                if not stop.received_signal and not failure:
                    for name, task in islice(pending, jobs - len(running)):
                        running[name] = _start_process(task, logs / f"{name}.log", jobs)
                elif stop.received_signal and not is_forwarded:
                    is_forwarded = True
                    _send_signal(running.values(), signal.SIGTERM)
                if not running:
                    break
                wait([process.sentinel for process in running.values()], SIGNAL_CHECK_SECONDS)
                for name in [name for name, process in running.items() if process.exitcode is not None]:
                    if status := running.pop(name).exitcode:
                        failure = failure or _describe_failure(name, status, logs / f"{name}.log")
                    else:
                        yield name
        except KeyboardInterrupt:
            _send_signal(running.values(), signal.SIGINT)
            raise
        finally:
            for process in running.values():
                process.join()
    if stop.received_signal:
        raise Interrupted(None, stop.received_signal)
    if failure:
        raise UserError(failure)


def _start_process(task: Callable[[], object], log: Path, jobs: int) -> BaseProcess:
    """Start a process from a fork server that has imported PyTorch; without fork, each process imports it.

    A fork of this process would have the locks of its threads, but not the threads.
    """
    context: Any = multiprocessing.get_context("spawn")
    if "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["regard.process_group", "regard.reproduce.workspace"])
    process: BaseProcess = context.Process(target=_run_task, args=(task, log, jobs))
    process.start()
    return process


def _send_signal(processes: Iterable[BaseProcess], number: int) -> None:
    """Send a signal, except on Windows, where Ctrl-C has reached all processes, and others would kill them."""
    for process in processes:
        if sys.platform != "win32" and process.pid is not None and process.is_alive():
            os.kill(process.pid, number)


def _run_task(task: Callable[[], object], log: Path, jobs: int) -> None:
    """Run a task in this process; write its output to a log file, and limit its threads."""
    with log.open("a", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    try:
        task()
    except (UserError, Interrupted) as error:
        sys.exit(str(error))


def _describe_failure(name: str, status: int, log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return f"{name}: the process exited with status {status}" + (f": {lines[-1]} (see {log})" if lines else "")


def train_and_measure_parallel(experiments: Sequence[Experiment], workspace: Workspace, seeds: int, jobs: int) -> None:
    """Train all missing models of the experiments, `jobs` at a time, with `seeds` seeds; then measure them.

    Experiments that measure time are not measured: nothing may run in parallel with them.
    """
    missing = [
        (experiment, repetition)
        for experiment in experiments
        for row in experiment.rows(workspace.scale)
        for repetition in (row.with_seed_offset(seed_index) for seed_index in range(seeds))
        if row.trainings and not workspace.is_measured(experiment.measure, repetition)
    ]
    trainings = {training.name: training for _, row in missing for training in row.trainings}
    untrained = {name: training for name, training in trainings.items() if not workspace.is_trained(training)}
    rows_by_run: dict[str, list[tuple[Measure, ExperimentRow]]] = {}  # by the run that caches them
    for experiment, row in missing:
        if not experiment.measures_time:
            rows_by_run.setdefault(row.trainings[0].name, []).append((experiment.measure, row))
    if untrained or rows_by_run:
        for corpus in dict.fromkeys(training.corpus for training in trainings.values()):
            workspace.get_corpus(corpus)  # once, before processes read it
    stages: dict[str, dict[str, Callable[[], object]]] = {
        "train": {name: partial(workspace.train_or_resume, training) for name, training in untrained.items()},
        "measure": {name: partial(_measure_rows, workspace, rows) for name, rows in rows_by_run.items()},
    }
    logs = workspace.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for verb, tasks in stages.items():
        if tasks:
            log_message(f"{len(tasks)} models to {verb}, {jobs} at a time; their logs are in {logs}")
        for count, name in enumerate(run_in_processes(tasks, jobs, logs), 1):
            log_message(f"{count}/{len(tasks)}: {workspace.out / 'runs' / name}")


def _measure_rows(workspace: Workspace, rows: Sequence[tuple[Measure, ExperimentRow]]) -> None:
    for measure, row in rows:
        workspace.measure_row(measure, row)
