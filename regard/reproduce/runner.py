"""Run experiments: train, measure, decide the claims, and write tables, pages and the overview.

Models can be trained and measured in parallel processes, whose output goes to log files.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import sys
import time
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
from regard.reproduce.experiment import SCALES, Experiment, ExperimentRow, MetricValues
from regard.reproduce.significance import DEVIATIONS_KEY, SEED_COUNT_KEY, Measurements, decide_claim
from regard.reproduce.tables import ResultTable, write_overview, write_results
from regard.reproduce.workspace import Measure, Workspace
from regard.runs.run import summarize_run
from regard.training.distributed import Interrupted, StopSignals
from regard.version import VERSION


def run_experiment(experiment: Experiment, workspace: Workspace, seeds: int = 1, may_train: bool = True) -> ResultTable:
    """Train missing models with `seeds` seeds each, measure them, and write the results.

    Without `may_train`, rows with untrained models are left out, and claims about them stay undecided.

    Returns:
        The content of `table.json`: claims with their results, rows with values, runs and hardware. `seconds` are those
        of this invocation; cached results take none.
    """
    start, start_cpu, rows, results = time.monotonic(), time.process_time(), experiment.rows(workspace.scale), []
    for index, row in enumerate(rows, 1):
        repetitions = [row.with_seed_offset(repetition) for repetition in range(seeds if row.trainings else 1)]
        is_available = may_train or all(
            workspace.is_measured(experiment.measure, repetition)
            or all(map(workspace.is_trained, repetition.trainings))
            for repetition in repetitions
        )
        skipped = "" if is_available else " is skipped: it is not trained"
        log_message(f"{experiment.name} {index}/{len(rows)}: {row.name}{skipped}")
        if is_available:
            results.append(_measure_repetitions(experiment, repetitions, workspace))
    if seeds > 1 and not any(row.trainings for row in rows):
        log_message(f"{experiment.name} trains no models; it was measured once, not with {seeds} seeds")
    if not results:
        raise UserError(f"{experiment.name}: no row is trained yet at the scale {workspace.scale}; leave out --trained")
    values = {result["name"]: result["measured"] for result in results}
    findings = [(claim, decide_claim(claim, Measurements(values, workspace.scale))) for claim in experiment.claims]
    seconds = {"clock": time.monotonic() - start, "process": time.process_time() - start_cpu}
    table = {
        "experiment": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "scale": workspace.scale,
        "claims": [
            {"claim": claim.text, "whose": claim.origin, "verdict": str(finding.result), "figures": finding.evidence}
            for claim, finding in findings
        ],
        "rows": results,
        "signature": next((measured["signature"] for measured in values.values() if "signature" in measured), None),
        "seeds": max(int(measured.get(SEED_COUNT_KEY, 1)) for measured in values.values()),
        "seconds": {name: round(duration, 1) for name, duration in seconds.items()},
        "regard": VERSION,
    }
    write_results(experiment, table, workspace)
    write_overview(workspace)
    return table


def _measure_repetitions(
    experiment: Experiment, repetitions: Sequence[ExperimentRow], workspace: Workspace
) -> dict[str, Any]:
    """Measure a row with each of its seeds; return it with its runs and hardware, so that it can be reproduced."""
    row = repetitions[0]
    measured = [workspace.measure_row(experiment.measure, repetition) for repetition in repetitions]
    runs = [
        {
            "run": str(workspace.run_folder(training)),
            "seed": training.seed,
            "seconds": summarize_run(workspace.run_folder(training)).seconds,
            "changes": dict(training.changes),
            "command": workspace.format_train_command(training),
        }
        for repetition in repetitions
        for training in repetition.trainings
    ]
    return {
        "name": row.name,
        "runs": runs,
        "options": dict(row.options),
        "measured": dict(_average_repetitions(measured)),
        "published": dict(row.published),
        "hardware": workspace.read_hardware(experiment.measure, row),
    }


def _average_repetitions(repetitions: Sequence[MetricValues]) -> MetricValues:
    """Return mean and standard deviation of each number over the repetitions; of other values the first."""
    first, *others = repetitions
    if not others:
        return first
    names = [name for name in first if all(isinstance(values.get(name), int | float) for values in repetitions)]
    numbers = {name: [float(values[name]) for values in repetitions] for name in names}
    means = {name: statistics.fmean(values) for name, values in numbers.items()}
    deviations = {name: statistics.stdev(values) for name, values in numbers.items()}
    return {**first, **means, DEVIATIONS_KEY: deviations, SEED_COUNT_KEY: len(repetitions)}


def format_claim_results(table: ResultTable) -> str:
    """Format the claims and their results as text."""
    width = max((len(claim["verdict"]) for claim in table["claims"]), default=0)
    lines = [f"  {claim['verdict']:<{width}}  {claim['claim']} ({claim['figures']})" for claim in table["claims"]]
    return "\n".join([f"{table['experiment']}: {table['title']}", *lines])


def describe_experiment(experiment: Experiment) -> str:
    """Describe an experiment: claims, source and cost."""
    small, full = (_format_training_count(experiment, scale) for scale in SCALES)
    claims = "\n".join(f"  - {claim.text}" for claim in experiment.claims)
    minutes = experiment.cpu_minutes
    cpu_time = f"{minutes:g} minute{'s' * (minutes != 1)}" if minutes >= 1 else f"{minutes * 60:.0f} seconds"
    cost = f"small: {small}, about {cpu_time} of one CPU core; full: {full}, on a GPU"
    return f"{experiment.name}: {experiment.title}\n{claims}\n  source: {experiment.source}\n  {cost}"


def _format_training_count(experiment: Experiment, scale: str) -> str:
    count = len({training.name for row in experiment.rows(scale) for training in row.trainings})
    return {0: "no training", 1: "1 training"}.get(count, f"{count} trainings")


def format_dry_run(experiments: Sequence[Experiment], workspace: Workspace, seeds: int = 1) -> str:
    """List the rows with the command that trains each model; mark models that are trained already."""
    lines = [f"# corpora are written to {workspace.out / 'corpora'} when a training first needs them"]
    for experiment in experiments:
        lines.append(f"# {experiment.name}: {experiment.title}")
        for row in experiment.rows(workspace.scale):
            options = "".join(f", {key}={value}" for key, value in row.options.items())
            lines.append(f"# {row.name}{options}")
            for training in (one for seed in range(seeds) for one in row.with_seed_offset(seed).trainings):
                note = " # already trained" if workspace.is_trained(training) else ""
                lines.append(workspace.format_train_command(training) + note)
    return "\n".join(lines)


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
