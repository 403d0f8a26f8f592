"""Run experiments: train, measure, decide the claims, and write tables, pages and the overview."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from regard.console import log_message
from regard.errors import UserError
from regard.reproduce.experiment import SCALES, Experiment, ExperimentRow, MetricValues
from regard.reproduce.significance import DEVIATIONS_KEY, SEED_COUNT_KEY, Measurements, decide_claim
from regard.reproduce.tables import ResultTable, write_overview, write_results
from regard.reproduce.workspace import Workspace
from regard.runs.run import summarize_run
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
    width = max(len(claim["verdict"]) for claim in table["claims"])
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
