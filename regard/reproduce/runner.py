"""Run experiments: train, measure, decide the claims, and write tables, pages and the overview."""

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
    """Train missing models with `seeds` seeds each, measure them, and write the results.

    Without `may_train`, rows with untrained models are left out, and claims about them stay undecided.
    """
    start, start_cpu, rows, results = time.monotonic(), time.process_time(), experiment.rows(workspace.scale), []
    for index, row in enumerate(rows, 1):
        repetitions = [row.with_seed_offset(repetition) for repetition in range(seeds if row.trainings else 1)]
        is_available = may_train or all(
            workspace.is_measured(experiment.measure, row_repetition)
            or all(map(workspace.is_trained, row_repetition.trainings))
            for row_repetition in repetitions
        )
        skipped = "" if is_available else " is skipped: it is not trained"
        log_message(f"{experiment.name} {index}/{len(rows)}: {row.name}{skipped}")
        if is_available:
            results.append(
                RowResult(
                    repetitions,
                    _average_repetitions(
                        [workspace.measure_row(experiment.measure, row_repetition) for row_repetition in repetitions]
                    ),
                )
            )
    if seeds > 1 and not any(row.trainings for row in rows):
        log_message(f"{experiment.name} trains no models; it was measured once, not with {seeds} seeds")
    if not results:
        raise UserError(f"{experiment.name}: no row is trained yet at the scale {workspace.scale}; leave out --trained")
    spent = TimeSpent(time.monotonic() - start, time.process_time() - start_cpu)
    outcome = judge_claims(experiment, results, workspace.scale, spent)
    folder = workspace.results_folder / experiment.name
    write_result_tables(outcome, workspace, folder)
    write_experiment_page(outcome, workspace, folder)
    write_overview(workspace)
    return outcome


def _average_repetitions(repetitions: Sequence[MetricValues]) -> MetricValues:
    """Return mean and standard deviation of each number over the repetitions; of other values the first."""
    first, *others = repetitions
    if not others:
        return first
    numbers = {
        name: [float(values_of_repetition[name]) for values_of_repetition in repetitions]
        for name in first
        if all(isinstance(values_of_repetition.get(name), int | float) for values_of_repetition in repetitions)
    }
    means = {name: statistics.fmean(values) for name, values in numbers.items()}
    deviations = {name: statistics.stdev(values) for name, values in numbers.items()}
    return {**first, **means, DEVIATIONS_KEY: deviations, SEED_COUNT_KEY: len(repetitions)}


def write_overview(workspace: Workspace) -> Path:
    """Write `README.md` and `index.html`: all claims of the experiments at this scale, with their results."""
    results = [
        result for name in EXPERIMENTS if (result := _read_result_table(workspace.results_folder / name / "table.json"))
    ]
    rows = [(entry, claim) for entry in results for claim in entry["claims"]]
    head = ["experiment", "claim", "verdict", "figures"]
    cells = [
        [
            f"[{entry['experiment']}]({entry['experiment']}/table.md)",
            claim["claim"],
            claim["verdict"],
            claim["figures"],
        ]
        for entry, claim in rows
    ]
    (workspace.results_folder / "README.md").write_text(
        f"# Claims at the scale {workspace.scale}\n\n{format_markdown_table(head, cells)}", encoding="utf-8"
    )
    body = "".join(
        f'<tr><td><a href="{escape(entry["experiment"])}/page.html">{escape(entry["title"])}</a></td>'
        f"<td>{escape(claim['claim'])}</td>"
        f"<td>{RESULT_SYMBOLS[ClaimResult(claim['verdict'])]} {escape(claim['verdict'])}</td>"
        f"<td>{escape(claim['figures'])}</td></tr>"
        for entry, claim in rows
    )
    titles = "".join(f"<th scope=col>{title}</th>" for title in head)
    path = workspace.results_folder / "index.html"
    table = f"<div class=scroll><table class=sheet><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    title = f"The papers' claims, scale {workspace.scale}"
    verdicts = Counter(claim["verdict"] for _, claim in rows)
    count = "; ".join(f"{verdicts[verdict]} {verdict}" for verdict in ClaimResult)
    path.write_text(
        format_html_document(title, f"<h1>{title}</h1><p>{len(rows)} claims: {count}.</p>{table}"), encoding="utf-8"
    )
    return path


def _read_result_table(path: Path) -> dict[str, Any] | None:
    """Read the results of an experiment; None if there are none."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def format_outcome(outcome: ExperimentOutcome) -> str:
    """Format the claims and their results as text."""
    lines = [f"{outcome.experiment.name}: {outcome.experiment.title}"]
    width = max(len(finding.result) for _, finding in outcome.findings)
    lines += [f"  {finding.result:<{width}}  {claim.text} ({finding.evidence})" for claim, finding in outcome.findings]
    return "\n".join(lines)


def describe_experiment(experiment: Experiment) -> str:
    """Describe an experiment: claims, source and cost."""
    small, full = (
        len({training.name for row in experiment.rows(scale) for training in row.trainings})
        for scale in ("small", "full")
    )
    claims = "\n".join(f"  - {claim.text}" for claim in experiment.claims)
    small_cost = (
        f"small: {_format_training_count(small)}, about {_format_minutes(experiment.cpu_minutes)} of one CPU core"
    )
    cost = f"{small_cost}; full: {_format_training_count(full)}, on a GPU"
    return f"{experiment.name}: {experiment.title}\n{claims}\n  source: {experiment.source}\n  {cost}"


def _format_training_count(count: int) -> str:
    return {0: "no training", 1: "1 training"}.get(count, f"{count} trainings")


def _format_minutes(count: float) -> str:
    return f"{count:g} minute{'s' * (count != 1)}" if count >= 1 else f"{count * 60:.0f} seconds"


def format_dry_run(experiments: Sequence[Experiment], workspace: Workspace, seeds: int = 1) -> str:
    """List the rows with the command that trains each model; mark models that are trained already."""
    lines = [f"# corpora are written to {workspace.out / 'corpora'} when a training first needs them"]
    for experiment in experiments:
        lines.append(f"# {experiment.name}: {experiment.title}")
        for row in experiment.rows(workspace.scale):
            options = "".join(f", {key}={value}" for key, value in row.options.items())
            lines.append(f"# {row.name}{options}")
            for training in (
                spec for repetition in range(seeds) for spec in row.with_seed_offset(repetition).trainings
            ):
                lines.append(
                    workspace.format_train_command(training)
                    + (" # already trained" if workspace.is_trained(training) else "")
                )
    return "\n".join(lines)
