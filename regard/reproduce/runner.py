"""From an experiment to its table and its page."""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from regard.console import log_message
from regard.errors import UserError
from regard.report import format_html_document
from regard.reproduce.experiment import Experiment, MetricValues
from regard.reproduce.experiments import EXPERIMENTS
from regard.reproduce.significance import DEVIATIONS_KEY, SEED_COUNT_KEY, ClaimResult
from regard.reproduce.tables import (
    RESULT_SYMBOLS,
    ExperimentOutcome,
    RowResult,
    TimeSpent,
    format_markdown_table,
    judge_claims,
    write_experiment_page,
    write_result_tables,
)
from regard.reproduce.workspace import Workspace


def run_experiment(
    experiment: Experiment, workspace: Workspace, seeds: int = 1, may_train: bool = True
) -> ExperimentOutcome:
    """Trains what is missing, each model with so many seeds, measures it, and writes what came of it.

    Not `trains`: a row whose models are not all there is left out, and what is claimed of it not decided.
    """
    began, worked, rows, results = time.monotonic(), time.process_time(), experiment.rows(workspace.scale), []
    for number, row in enumerate(rows, 1):
        times = [row.with_seed_offset(turn) for turn in range(seeds if row.trainings else 1)]
        there = may_train or all(
            workspace.is_measured(experiment.measure, one) or all(map(workspace.is_trained, one.trainings))
            for one in times
        )
        log_message(
            f"{experiment.name} {number}/{len(rows)}: {row.name}{'' if there else ' is left out: it is not trained'}"
        )
        if there:
            results.append(
                RowResult(
                    times, _average_repetitions([workspace.measure_row(experiment.measure, one) for one in times])
                )
            )
    if seeds > 1 and not any(row.trainings for row in rows):
        log_message(f"{experiment.name} has no runs, so that it was measured once, not with {seeds} seeds")
    if not results:
        raise UserError(
            f"{experiment.name}: no row is trained yet at the scale {workspace.scale}; without --trained it is"
        )
    spent = TimeSpent(time.monotonic() - began, time.process_time() - worked)
    outcome = judge_claims(experiment, results, workspace.scale, spent)
    folder = workspace.results_folder / experiment.name
    write_result_tables(outcome, workspace, folder)
    write_experiment_page(outcome, workspace, folder)
    write_overview(workspace)
    return outcome


def _average_repetitions(repetitions: Sequence[MetricValues]) -> MetricValues:
    """The mean of each number over several times, and its deviation; of what is no number the first."""
    first, *others = repetitions
    if not others:
        return first
    numbers = {
        name: [float(one[name]) for one in repetitions]
        for name in first
        if all(isinstance(one.get(name), int | float) for one in repetitions)
    }
    means = {name: statistics.fmean(values) for name, values in numbers.items()}
    deviations = {name: statistics.stdev(values) for name, values in numbers.items()}
    return {**first, **means, DEVIATIONS_KEY: deviations, SEED_COUNT_KEY: len(repetitions)}


def write_overview(workspace: Workspace) -> Path:
    """`README.md` and `index.html`: every claim of the experiments that were run at this scale, with its verdict."""
    told = [
        tables for name in EXPERIMENTS if (tables := _read_result_table(workspace.results_folder / name / "table.json"))
    ]
    rows = [(one, claim) for one in told for claim in one["claims"]]
    head = ["experiment", "claim", "verdict", "figures"]
    cells = [
        [f"[{one['experiment']}]({one['experiment']}/table.md)", claim["claim"], claim["verdict"], claim["figures"]]
        for one, claim in rows
    ]
    (workspace.results_folder / "README.md").write_text(
        f"# Claims at the scale {workspace.scale}\n\n{format_markdown_table(head, cells)}", encoding="utf-8"
    )
    body = "".join(
        f'<tr><td><a href="{escape(one["experiment"])}/page.html">{escape(one["title"])}</a></td>'
        f"<td>{escape(claim['claim'])}</td>"
        f"<td>{RESULT_SYMBOLS[ClaimResult(claim['verdict'])]} {escape(claim['verdict'])}</td>"
        f"<td>{escape(claim['figures'])}</td></tr>"
        for one, claim in rows
    )
    titles = "".join(f"<th scope=col>{title}</th>" for title in head)
    path = workspace.results_folder / "index.html"
    sheeted = (
        f"<div class=scroll><table class=sheet><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )
    title = f"The papers' claims, scale {workspace.scale}"
    verdicts = Counter(claim["verdict"] for _, claim in rows)
    count = "; ".join(f"{verdicts[verdict]} {verdict}" for verdict in ClaimResult)
    path.write_text(
        format_html_document(title, f"<h1>{title}</h1><p>{len(rows)} claims: {count}.</p>{sheeted}"), encoding="utf-8"
    )
    return path


def _read_result_table(path: Path) -> dict[str, Any] | None:
    """The results of an experiment, if there are any."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def format_outcome(outcome: ExperimentOutcome) -> str:
    """Claim by claim, for people."""
    lines = [f"{outcome.experiment.name}: {outcome.experiment.title}"]
    width = max(len(found.result) for _, found in outcome.findings)
    lines += [f"  {found.result:<{width}}  {claim.text} ({found.evidence})" for claim, found in outcome.findings]
    return "\n".join(lines)


def describe_experiment(experiment: Experiment) -> str:
    """What an experiment claims, where that comes from, and what it costs."""
    small, full = (
        len({one.name for row in experiment.rows(scale) for one in row.trainings}) for scale in ("small", "full")
    )
    claims = "\n".join(f"  - {claim.text}" for claim in experiment.claims)
    on_a_core = (
        f"small: {_format_training_count(small)}, about {_format_minutes(experiment.cpu_minutes)} of one CPU core"
    )
    cost = f"{on_a_core}; full: {_format_training_count(full)}, on a GPU"
    return f"{experiment.name}: {experiment.title}\n{claims}\n  source: {experiment.source}\n  {cost}"


def _format_training_count(count: int) -> str:
    """How many models are trained."""
    return {0: "no run is trained", 1: "1 training"}.get(count, f"{count} trainings")


def _format_minutes(count: float) -> str:
    """A time in words."""
    return f"{count:g} minute{'s' * (count != 1)}" if count >= 1 else f"{count * 60:.0f} seconds"


def format_dry_run(experiments: Sequence[Experiment], workspace: Workspace, seeds: int = 1) -> str:
    """What would be run, row by row, with the command that trains each model; a model that is there says so."""
    lines = [f"# corpora are written to {workspace.out / 'corpora'} when a run first needs them"]
    for experiment in experiments:
        lines.append(f"# {experiment.name}: {experiment.title}")
        for row in experiment.rows(workspace.scale):
            options = "".join(f", {key}={value}" for key, value in row.options.items())
            lines.append(f"# {row.name}{options}")
            for training in (one for turn in range(seeds) for one in row.with_seed_offset(turn).trainings):
                lines.append(
                    workspace.format_train_command(training) + (" # is there" if workspace.is_trained(training) else "")
                )
    return "\n".join(lines)
