"""Generate the pages of `docs/reproduce` and their charts from the experiments' YAML and `docs/results/reproduce`.

`python docs/tables.py` writes them. `python docs/experiments.py runs/reproduce/small` takes over the results of
`regard reproduce --all`, with the machine and the day on which they were written.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.plot.heatmap import hide_axes_frame, make_figure
from regard.report.html import load_macros
from regard.reproduce.experiment import SCALES, Experiment, find_metric
from regard.reproduce.experiments import EXPERIMENTS
from regard.reproduce.significance import DEVIATIONS_KEY, ClaimResult
from regard.reproduce.tables import ORIGIN_TITLES, ResultTable, make_value_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = Path(__file__).parent
RESULTS, IMAGES = DOCS / "results" / "reproduce", DOCS / "images" / "reproduce"
ORIGINS = {"paper": "of the papers", "ours": "of our own", "definition": "that follow from what is compared"}
VERBS = {
    ClaimResult.HOLDS: ("holds", "hold"),
    ClaimResult.FAILS: ("does not hold here", "do not hold here"),
    ClaimResult.UNDECIDED: ("is not decided", "are not decided"),
}
NO_RESULT, GREY = "–", "#808080"  # grey is legible on light and dark pages


# Results


def load_results(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return the results of an experiment at each scale, with published values and origins of claims from its YAML."""
    results: dict[str, dict[str, Any]] = json.loads((RESULTS / f"{experiment.name}.json").read_text(encoding="utf-8"))
    origins = {claim.text: claim.origin for claim in experiment.claims}
    for scale, table in results.items():
        published = {row.name: dict(row.published) for row in experiment.rows(scale)}
        table["claims"] = [{**claim, "whose": origins[claim["claim"]]} for claim in table["claims"]]
        table["rows"] = [{**row, "published": published[row["name"]]} for row in table["rows"]]
    return results


def import_results(folder: Path) -> None:
    """Replace the results of one scale by those in the `table.json` files of a folder of `regard reproduce`."""
    for path in sorted(folder.glob("*/table.json")):
        table: ResultTable = json.loads(path.read_text(encoding="utf-8"))
        known = RESULTS / f"{table['experiment']}.json"
        results = json.loads(known.read_text(encoding="utf-8")) if known.is_file() else {}
        written = date.fromtimestamp(path.stat().st_mtime).isoformat()
        results[table["scale"]] = {**select_results(table), "date": written}
        known.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def select_results(table: ResultTable) -> dict[str, Any]:
    """Return what the documentation keeps of a `table.json`."""
    experiment, keys = EXPERIMENTS[table["experiment"]], find_differing_keys(table["rows"])
    scale = "" if table["scale"] == "small" else f" --scale {table['scale']}"
    seeds = f" --seeds {table['seeds']}" if table["seeds"] > 1 else ""
    shown = {*experiment.columns, DEVIATIONS_KEY}
    return {
        "command": f"regard reproduce {experiment.name}{scale}{seeds}",
        "seeds": table["seeds"],
        "machine": format_machine(table["rows"]),
        "date": None,
        "signature": table["signature"],
        "claims": [{key: claim[key] for key in ("claim", "verdict", "figures")} for claim in table["claims"]],
        "rows": [
            {
                "name": row["name"],
                "measured": {key: value for key, value in row["measured"].items() if key in shown},
                "trained_as": format_trainings(row, keys),
            }
            for row in table["rows"]
        ],
    }


def format_machine(rows: list[dict[str, Any]]) -> str:
    """Return the machines that rows were measured on: GPU, or processor with its cores, and threads."""
    machines = []
    for hardware in (row["hardware"] for row in rows):
        processor = f"{hardware['machine']}, {hardware['cores']} cores, PyTorch {hardware['torch']}"
        machines.append(f"{hardware['gpu']}, {processor}" if hardware["gpu"] else processor)
    return "; ".join(dict.fromkeys(machines))


OPTIONAL = {
    *("model.positions", "model.reverse", "model.score", "model.estimator", "model.decode", "model.key_value"),
    *("model.doubly_stochastic", "model.cell", "model.network", "model.delay", "model.input_feeding"),
}


def find_differing_keys(rows: list[dict[str, Any]]) -> set[str]:
    """Return the keys outside of `training` that distinguish the rows."""
    seen: dict[str, set[str]] = {}
    for row in rows:
        for run in row["runs"]:
            for key, value in run["changes"].items():
                seen.setdefault(key, set()).add(json.dumps(value))
    count = sum(len(row["runs"]) for row in rows)
    named = Counter(key for row in rows for run in row["runs"] for key in run["changes"])
    several = {key for key, values in seen.items() if len(values) > 1}
    optional = {key for key in OPTIONAL if 0 < named[key] < count}
    return {key for key in several | optional if not key.startswith("training.")}


def format_trainings(row: dict[str, Any], keys: set[str]) -> str:
    """Return the recipes of a row with the keys that distinguish it, and its search options."""
    runs: dict[str, list[int]] = {}
    for run in row["runs"]:
        special = [f"{key}={value}" for key, value in run["changes"].items() if key in keys]
        recipe = Path(run["run"]).name.rsplit("-", 1)[0]
        runs.setdefault(f"`{' '.join([recipe, *special])}`", []).append(run["seed"])
    options = [f"{key}={value}" for key, value in row["options"].items()]
    return "; ".join([*(run + _count_models(seeds) for run, seeds in runs.items()), *options])


def _count_models(seeds: list[int]) -> str:
    """Describe models of one recipe by their seeds; those with one seed in common were trained on several corpora."""
    numbers = {"seeds": len(set(seeds)), "corpora": len(seeds) // len(set(seeds))}
    return "".join(f", {number} {name}" for name, number in numbers.items() if number > 1)


# Pages


def make_page(experiment: Experiment) -> str:
    """Return the page of an experiment: source, chart, and claims and values at each scale."""
    results = load_results(experiment)
    parts = [
        f"# {experiment.title}",
        f"{experiment.source}.",
        experiment.description,
        f"![{describe_chart(experiment)}](../images/reproduce/{experiment.name}.svg)",
        *(format_scale(experiment, scale, results[scale]) for scale in SCALES if scale in results),
        f"The figures as [JSON](../results/reproduce/{experiment.name}.json) · [what decides a claim]"
        f"(../reproduce.md#what-decides) · [all experiments](../reproduce.md)",
    ]
    return "\n\n".join(parts) + "\n"


def format_scale(experiment: Experiment, scale: str, table: dict[str, Any]) -> str:
    """Return the section of a scale: command, machine, claims and values."""
    head, rows = make_value_grid(table, experiment.columns)
    markdown = load_macros("regard.reproduce", "tables.md.j2")
    trained = (row["trained_as"] for row in table["rows"])
    values = markdown.grid([*head, "trained as"], [[*cells, runs] for cells, runs in zip(rows, trained, strict=True)])
    about = f"Machine: {table['machine']}. Date: {table['date'] or 'unknown'}."
    parts = [f"## {scale.capitalize()} scale", f"```\n{table['command']}\n```", about, table.get("note", "")]
    claims = markdown.claims(table, ORIGIN_TITLES)
    return "\n\n".join(filter(None, [*parts, claims.strip(), values.strip()]))


def choose_chart_metric(experiment: Experiment) -> str:
    """Return the metric of the experiment's first bar chart, or else its first column."""
    return next((chart.metric for chart in experiment.charts if not chart.x_label), experiment.columns[0])


def describe_chart(experiment: Experiment) -> str:
    """Return the alternative text of an experiment's chart: the values of all rows."""
    name, texts = choose_chart_metric(experiment), []
    metric = find_metric(name)
    for scale, table in load_results(experiment).items():
        measured = [(row["name"], row["measured"].get(name)) for row in table["rows"]]
        values = [
            f"{row} {NO_RESULT if value is None else f'{value:{metric.number_format}}'}" for row, value in measured
        ]
        texts.append(f"{scale} scale: {', '.join(values)}")
    return f"{metric.title}, {'; '.join(texts)}"


def draw_charts() -> None:
    """Draw a chart of each experiment, with a panel for each scale, as an SVG that keeps its text as text."""
    import matplotlib

    IMAGES.mkdir(parents=True, exist_ok=True)
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "regard", "font.size": 9}
    with matplotlib.rc_context({**style, "text.color": GREY, "xtick.color": GREY, "ytick.color": GREY}):
        for experiment in EXPERIMENTS.values():
            results = load_results(experiment)
            figure = make_figure((8.0, 0.9 + 0.27 * len(results[SCALES[0]]["rows"])), dpi=72)
            panels = figure.subplots(1, len(results), squeeze=False, sharey=True).flat
            for axes, (scale, table) in zip(panels, results.items(), strict=True):
                _plot_panel(axes, choose_chart_metric(experiment), scale, table["rows"])
            figure.savefig(IMAGES / f"{experiment.name}.svg", transparent=True, metadata={"Date": None})


def _plot_panel(axes: Axes, metric: str, scale: str, rows: list[dict[str, Any]]) -> None:
    """Plot a bar with its deviation for each row, and a diamond for the paper's value."""
    values = [row["measured"].get(metric, 0) for row in rows]
    deviations = [row["measured"].get(DEVIATIONS_KEY, {}).get(metric, 0) for row in rows]
    bars = axes.barh(
        range(len(rows)),
        values,
        color="tab:blue",
        height=0.6,
        xerr=deviations if any(deviations) else None,
        ecolor=GREY,
    )
    labels = [format(value, find_metric(metric).number_format) for value in values]
    axes.bar_label(bars, labels, padding=4, color=GREY, fontsize="small")
    published = [(row["published"][metric], index) for index, row in enumerate(rows) if metric in row["published"]]
    if published:
        axes.plot(*zip(*published, strict=True), "D", color="tab:orange", markersize=5, label="paper", clip_on=False)
        axes.legend(frameon=False, fontsize="small", loc="lower right", bbox_to_anchor=(1.0, 1.0))
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.margins(x=0.12)
    axes.grid(axis="x", color=GREY, alpha=0.25)
    axes.set_axisbelow(True)
    axes.set_title(f"{find_metric(metric).title}, {scale} scale", fontsize="medium", loc="left")
    hide_axes_frame(axes)


# Overview


def make_matrix() -> str:
    """Return a table of all claims with their results at both scales."""
    lines = ["| experiment | claim | whose | small scale | full scale |", "|---|---|---|---|---|"]
    for experiment in EXPERIMENTS.values():
        results = load_results(experiment)
        verdicts = {scale: {one["claim"]: one["verdict"] for one in results[scale]["claims"]} for scale in results}
        for index, claim in enumerate(experiment.claims):
            link = "" if index else f"[{experiment.title}](reproduce/{experiment.name}.md)"
            found = [verdicts.get(scale, {}).get(claim.text, NO_RESULT) for scale in SCALES]
            cells = [link, claim.text.replace("|", "\\|"), ORIGIN_TITLES[claim.origin], *found]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def make_counts() -> str:
    """Return a sentence for each scale with the numbers of claims that hold."""
    tables = [load_results(experiment) for experiment in EXPERIMENTS.values()]
    lines = []
    for scale in SCALES:
        claims = [claim for results in tables for claim in results.get(scale, {}).get("claims", [])]
        counts = [count_results(origin, [claim for claim in claims if claim["whose"] == origin]) for origin in ORIGINS]
        lines.append(f"- {scale.capitalize()} scale: {' '.join(filter(None, counts))}")
    return "\n".join(lines)


def count_results(origin: str, claims: list[dict[str, str]]) -> str:
    """Return a sentence with the number of claims that hold."""
    verdicts = Counter(ClaimResult(claim["verdict"]) for claim in claims)
    count = ", ".join(f"{number} {VERBS[verdict][number > 1]}" for verdict, number in verdicts.most_common())
    return f"Of {len(claims)} claims {ORIGINS[origin]} {count}." if claims else ""


def make_pages() -> dict[Path, str]:
    """Return path → text of the generated pages."""
    return {DOCS / "reproduce" / f"{name}.md": make_page(experiment) for name, experiment in EXPERIMENTS.items()}


if __name__ == "__main__":
    import_results(Path(sys.argv[1]))
