"""Results of experiments as Markdown, JSON and HTML, with charts."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.paths import format_json
from regard.plot.charts import plot_bars, plot_curves
from regard.plot.heatmap import write_figure
from regard.report.html import format_html_document, load_macros
from regard.reproduce.experiment import Chart, Experiment, MetricValues, find_metric
from regard.reproduce.experiments import EXPERIMENTS
from regard.reproduce.significance import DEVIATIONS_KEY, ClaimResult
from regard.reproduce.workspace import Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MISSING_VALUE = "–"
ORIGIN_TITLES = {"paper": "the paper's", "ours": "ours", "definition": "by definition"}
LEGEND = (
    "± at a claim is the margin of a difference at the 95 % level; it is assumed if a model was trained once. ± at a "
    "figure is the standard deviation between seeds; curves show the first seed."
)

ResultTable = Mapping[str, Any]  # content of `table.json`


def write_results(experiment: Experiment, table: ResultTable, workspace: Workspace) -> None:
    """Write `table.json`, `table.md`, and `page.html` with its charts to the experiment's folder."""
    folder = workspace.results_folder / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.json").write_text(format_json(table, indent=1) + "\n", encoding="utf-8")
    head, values = make_value_grid(table, experiment.columns)
    markdown = load_macros("regard.reproduce", "tables.md.j2").results
    text = markdown(experiment, table, ORIGIN_TITLES, head, values, LEGEND)
    (folder / "table.md").write_text(text, encoding="utf-8")
    images = []
    for chart in experiment.charts:
        if figure := _plot_chart(chart, table["rows"]):
            path = folder / f"{chart.metric}.png"
            write_figure(figure, path)
            images.append((chart.title, base64.b64encode(path.read_bytes()).decode()))
    seeds = f" --seeds {table['seeds']}" if table["seeds"] > 1 else ""
    command = f"regard reproduce {table['experiment']} --scale {table['scale']}{seeds}"
    page = load_macros("regard.reproduce", "page.html.j2").experiment
    body = page(experiment, table, ORIGIN_TITLES, head, values, images, command, LEGEND)
    (folder / "page.html").write_text(format_html_document(experiment.title, body), encoding="utf-8")


def make_value_grid(table: ResultTable, columns: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the measured values; published values come after them."""
    published = [name for name in columns if any(name in row["published"] for row in table["rows"])]
    titles = [find_metric(name).title for name in columns]
    head = ["", *titles, *(f"{find_metric(name).title}, paper" for name in published)]
    rows = [
        [
            row["name"],
            *(_format_value_with_deviation(name, row["measured"]) for name in columns),
            *(_format_value(name, row["published"].get(name)) for name in published),
        ]
        for row in table["rows"]
    ]
    return head, rows


def _format_value(metric: str, value: Any) -> str:
    return MISSING_VALUE if value is None else format(value, find_metric(metric).number_format)


def _format_value_with_deviation(metric: str, values: MetricValues) -> str:
    """Format the value of a metric, with its deviation between seeds if there are several."""
    deviation = values.get(DEVIATIONS_KEY, {}).get(metric)
    value = _format_value(metric, values.get(metric))
    return value if deviation is None else f"{value} ± {_format_value(metric, deviation)}"


def _plot_chart(chart: Chart, rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw a chart of the rows that have its metric; None if there are none."""
    metric = chart.metric
    plotted = {row["name"]: row for row in rows if row["measured"].get(metric) is not None}
    if not plotted:
        return None
    values = {name: row["measured"][metric] for name, row in plotted.items()}
    if chart.x_label:
        return plot_curves(values, chart.title, chart.x_label, chart.y_label, chart.log_scale)
    published = {name: row["published"][metric] for name, row in plotted.items() if metric in row["published"]}
    all_deviations = {name: row["measured"].get(DEVIATIONS_KEY, {}) for name, row in plotted.items()}
    deviations = {name: deviations[metric] for name, deviations in all_deviations.items() if metric in deviations}
    return plot_bars(values, chart.title, published, deviations)


def write_overview(workspace: Workspace) -> Path:
    """Write `README.md` and `index.html`: all claims of the experiments at this scale, with their results."""
    paths = (workspace.results_folder / name / "table.json" for name in EXPERIMENTS)
    tables = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()]
    claims = [claim for table in tables for claim in table["claims"]]
    title = f"The papers' claims, scale {workspace.scale}"
    markdown = load_macros("regard.reproduce", "tables.md.j2").overview(workspace.scale, tables)
    (workspace.results_folder / "README.md").write_text(markdown, encoding="utf-8")
    verdicts = Counter(claim["verdict"] for claim in claims)
    count = "; ".join(f"{verdicts[result]} {result}" for result in ClaimResult)
    body = load_macros("regard.reproduce", "page.html.j2").overview(title, len(claims), count, tables)
    path = workspace.results_folder / "index.html"
    path.write_text(format_html_document(title, body), encoding="utf-8")
    return path
