"""Results of experiments as Markdown, JSON and HTML, with charts."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.plot import plot_bars, plot_curves, write_figure
from regard.report import format_html_document
from regard.reproduce.experiment import (
    BarChart,
    Claim,
    ClaimOrigin,
    CurveChart,
    Experiment,
    ExperimentRow,
    MetricValues,
)
from regard.reproduce.significance import DEVIATIONS_KEY, SEED_COUNT_KEY, ClaimResult, Finding, Measurements
from regard.reproduce.workspace import Workspace
from regard.runs.summary import summarize_run
from regard.strict_json import dumps
from regard.version import VERSION

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MISSING_VALUE = "–"
ORIGIN_TITLES: dict[ClaimOrigin, str] = {"paper": "the paper's", "ours": "ours", "definition": "by definition"}
LEGEND = (
    "± at a claim is the margin of a difference at the 95 % level; it is assumed if a model was trained once. ± at a "
    "figure is the standard deviation between seeds; curves show the first seed."
)


class Column(NamedTuple):
    """Title and number format of a metric."""

    title: str
    number_format: str = ".3g"


COLUMNS = {
    "bleu": Column("BLEU", ".1f"),
    "replaced": Column("BLEU, unk replaced", ".1f"),
    "perplexity": Column("perplexity", ".2f"),
    "aer": Column("AER", ".3f"),
    "accuracy": Column("accuracy, %", ".1f"),
    "recall": Column("copied, %", ".1f"),
    "rmse": Column("RMSE", ".3f"),
    "r2": Column("R²", ".3f"),
    "entropy": Column("entropy, nats", ".2f"),
    "faint": Column("weights < 0.01", ".0%"),
    "kept": Column("long against short", ".0%"),
    "training_speed": Column("trained tokens/s", ",.0f"),
    "decoding_speed": Column("written words/s", ",.0f"),
    "parameters": Column("parameters", ",.0f"),
    "error": Column("error of the sum"),
    "gradient_kept": Column("gradient kept"),
    "loss": Column("loss"),
    "growth_operations": Column("operations, times"),
    "growth_bytes": Column("bytes, times"),
    "growth_seconds": Column("seconds, times"),
}


@dataclass(frozen=True)
class RowResult:
    """A row with its repetitions (other seeds), and its measured values."""

    repetitions: Sequence[ExperimentRow]
    values: MetricValues

    @property
    def row(self) -> ExperimentRow:
        """The row of the experiment."""
        return self.repetitions[0]


class TimeSpent(NamedTuple):
    """Wall-clock and process seconds of this invocation; cached results take none."""

    clock: float
    process: float


@dataclass(frozen=True)
class ExperimentOutcome:
    """The measured values and the decided claims of an experiment."""

    experiment: Experiment
    results: Sequence[RowResult]
    findings: Sequence[tuple[Claim, Finding]]
    time_spent: TimeSpent

    @property
    def seed_count(self) -> int:
        """Number of seeds."""
        return max((int(result.values.get(SEED_COUNT_KEY, 1)) for result in self.results), default=1)

    def format_command(self, scale: str) -> str:
        """Return the command that reproduces the outcome."""
        seeds = f" --seeds {self.seed_count}" if self.seed_count > 1 else ""
        return f"regard reproduce {self.experiment.name} --scale {scale}{seeds}"


def judge_claims(
    experiment: Experiment, results: Sequence[RowResult], scale: str, time_spent: TimeSpent
) -> ExperimentOutcome:
    """Decide each claim from the results."""
    measurements = Measurements({result.row.name: result.values for result in results}, scale)
    return ExperimentOutcome(
        experiment, results, [(claim, claim.rule(measurements)) for claim in experiment.claims], time_spent
    )


def _format_result_markdown(outcome: ExperimentOutcome) -> str:
    """Format the claims and the measured values as Markdown."""
    experiment = outcome.experiment
    claims = format_markdown_table(
        ["claim", "whose", "verdict", "figures"],
        [
            [claim.text, ORIGIN_TITLES[claim.origin], f"**{finding.result}**", finding.evidence]
            for claim, finding in outcome.findings
        ],
    )
    table = format_markdown_table(*_make_result_grid(outcome))
    return f"# {experiment.title}\n\n{experiment.source}\n\n{experiment.description}\n\n{claims}\n{LEGEND}\n\n{table}"


def _make_result_grid(outcome: ExperimentOutcome) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table; published values come after the measured ones."""
    columns = outcome.experiment.columns
    published = [name for name in columns if any(name in result.row.published for result in outcome.results)]
    head = [
        "",
        *(format_metric_title(name) for name in columns),
        *(f"{format_metric_title(name)}, paper" for name in published),
    ]
    rows = [
        [
            result.row.name,
            *(format_metric_with_deviation(name, result.values) for name in columns),
            *(format_metric(name, result.row.published.get(name)) for name in published),
        ]
        for result in outcome.results
    ]
    return head, rows


def format_metric_title(metric: str) -> str:
    """Return the title of a metric."""
    return COLUMNS.get(metric, Column(metric)).title


def format_metric(metric: str, value: Any) -> str:
    """Format the value of a metric."""
    return MISSING_VALUE if value is None else format(value, COLUMNS.get(metric, Column(metric)).number_format)


def format_metric_with_deviation(metric: str, values: MetricValues) -> str:
    """Format the value of a metric, with its deviation between seeds if there are several."""
    deviation = values.get(DEVIATIONS_KEY, {}).get(metric)
    return format_metric(metric, values.get(metric)) + (
        "" if deviation is None else f" ± {format_metric(metric, deviation)}"
    )


def format_markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _describe_outcome(outcome: ExperimentOutcome, workspace: Workspace) -> dict[str, Any]:
    """Return the outcome as a JSON object, with everything that is needed to reproduce it."""
    experiment = outcome.experiment
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "scale": workspace.scale,
        "claims": [
            {"claim": claim.text, "whose": claim.origin, "verdict": str(finding.result), "figures": finding.evidence}
            for claim, finding in outcome.findings
        ],
        "rows": [_describe_row_result(result, experiment, workspace) for result in outcome.results],
        "signature": next(
            (row_result.values["signature"] for row_result in outcome.results if "signature" in row_result.values), None
        ),
        "seeds": outcome.seed_count,
        "seconds": {name: round(seconds, 1) for name, seconds in outcome.time_spent._asdict().items()},
        "regard": VERSION,
    }


def _describe_row_result(result: RowResult, experiment: Experiment, workspace: Workspace) -> dict[str, Any]:
    """Return one row as a JSON object, with the hardware that it was measured on."""
    row = result.row
    runs = [
        {
            "run": str(workspace.run_folder(training)),
            "seed": training.seed,
            "seconds": summarize_run(workspace.run_folder(training)).seconds,
            "changes": dict(training.changes),
            "command": workspace.format_train_command(training),
        }
        for repetition in result.repetitions
        for training in repetition.trainings
    ]
    return {
        "name": row.name,
        "runs": runs,
        "options": dict(row.options),
        "measured": dict(result.values),
        "published": dict(row.published),
        "hardware": workspace.read_hardware(experiment.measure, row),
    }


def write_result_tables(outcome: ExperimentOutcome, workspace: Workspace, folder: Path) -> Mapping[str, Any]:
    """Write `table.md` and `table.json` to a folder; return the content of the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    description = _describe_outcome(outcome, workspace)
    (folder / "table.md").write_text(_format_result_markdown(outcome), encoding="utf-8")
    (folder / "table.json").write_text(dumps(description, indent=1) + "\n", encoding="utf-8")
    return description


RESULT_SYMBOLS = {ClaimResult.HOLDS: "✓", ClaimResult.FAILS: "✗", ClaimResult.UNDECIDED: "?"}


def _format_experiment_page(
    outcome: ExperimentOutcome, workspace: Workspace, pictures: Iterable[tuple[str, Path]]
) -> str:
    """Format the HTML page of an experiment."""
    experiment = outcome.experiment
    claims = "".join(
        f"<tr><td>{RESULT_SYMBOLS[finding.result]} {escape(finding.result)}</td><td>{escape(claim.text)}</td>"
        f"<td>{escape(ORIGIN_TITLES[claim.origin])}</td><td>{escape(finding.evidence)}</td></tr>"
        for claim, finding in outcome.findings
    )
    head, rows = _make_result_grid(outcome)
    cells = "".join(
        f"<tr><th scope=row>{escape(row[0])}</th>{''.join(map(_format_table_cell, row[1:]))}</tr>" for row in rows
    )
    titles = "".join(f"<th scope=col>{escape(title)}</th>" for title in head)
    commands = "".join(
        f"<p>{escape(result.row.name)}</p><pre>{escape(workspace.format_train_command(training))}</pre>"
        for result in outcome.results
        for repetition in result.repetitions
        for training in repetition.trainings
    )
    body = (
        f"<h1>{escape(experiment.title)}</h1><p class=paper>{escape(experiment.source)}</p>"
        f"<p>{escape(experiment.description)}</p>"
        f"<h2>Claims</h2><div class=scroll><table class=sheet>{claims}</table></div>"
        f"<p>{escape(LEGEND)}</p><h2>Figures, scale {escape(workspace.scale)}</h2>"
        f"<div class=scroll><table class=sheet><thead><tr>{titles}</tr></thead><tbody>{cells}</tbody></table></div>"
        f"<div class=charts>{''.join(_format_inline_image(*picture) for picture in pictures)}</div>"
        f"<h2>Reproduce</h2><pre>{escape(outcome.format_command(workspace.scale))}</pre>"
        f"<details><summary>each run separately</summary><div class=scroll>{commands}</div></details>"
    )
    return format_html_document(experiment.title, body)


def _format_table_cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"


def _format_inline_image(title: str, path: Path) -> str:
    """Embed an image in the page; its numbers are in the table as well."""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<figure><img src="data:image/png;base64,{data}" alt="{escape(title)}"></figure>'


def _plot_chart(chart: BarChart | CurveChart, outcome: ExperimentOutcome) -> Figure | None:
    """Draw a chart of the results; None if no row has its metric."""
    with_metric = [result for result in outcome.results if result.values.get(chart.metric) is not None]
    if not with_metric:
        return None
    if isinstance(chart, CurveChart):
        lines = {result.row.name: result.values[chart.metric] for result in with_metric}
        return plot_curves(lines, chart.title, chart.x_label, chart.y_label, chart.log_scale)
    values = {result.row.name: float(result.values[chart.metric]) for result in with_metric}
    published = {
        result.row.name: result.row.published[chart.metric]
        for result in with_metric
        if chart.metric in result.row.published
    }
    deviations = {
        result.row.name: result.values[DEVIATIONS_KEY][chart.metric]
        for result in with_metric
        if chart.metric in result.values.get(DEVIATIONS_KEY, {})
    }
    return plot_bars(values, chart.title, published, deviations)


def write_experiment_page(outcome: ExperimentOutcome, workspace: Workspace, folder: Path) -> Path:
    """Write `page.html` and its charts to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = []
    for chart in outcome.experiment.charts:
        figure = _plot_chart(chart, outcome)
        if figure is not None:
            path = folder / f"{chart.metric}.png"
            write_figure(figure, path)
            pictures.append((chart.title, path))
    path = folder / "page.html"
    path.write_text(_format_experiment_page(outcome, workspace, pictures), encoding="utf-8")
    return path
