"""Results in the documentation: tables and charts are those of the JSON files; every figure says where it is from."""

from __future__ import annotations

import importlib
import json
import re
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from regard.reproduce.experiment import SCALES, find_metric
from regard.reproduce.experiments import EXPERIMENTS
from regard.reproduce.significance import ClaimResult

DOCS = Path(__file__).parent.parent / "docs"
RESULTS = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((DOCS / "results").glob("*.json"))
}
# Tables by name; a file that holds a list has a script of its own.
NAMES = [f"{file}/{name}" for file, tables in RESULTS.items() if isinstance(tables, dict) for name in tables]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script that writes the tables."""
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("tables")


@pytest.fixture
def experiments(tables: ModuleType) -> Any:
    """Return the module that writes the pages of the experiments."""
    return tables.experiments


def test_tables_in_the_pages_are_those_of_the_results(tables: ModuleType) -> None:
    pages = tables.make_pages()
    assert {"README.md", "results.md", "speed.md", "reproduce.md", "ladder.md", "learn.md"} <= {p.name for p in pages}
    stale = [str(path) for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run python docs/tables.py"


def test_every_table_of_the_results_is_on_a_page(tables: ModuleType) -> None:
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    shown = {path for page in pages for _, path, _ in tables.TABLE.findall(page.read_text(encoding="utf-8"))}
    assert shown - tables.SPECIAL.keys() == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_result_says_how_and_when_it_was_measured(name: str, tables: ModuleType) -> None:
    file, _, table = name.partition("/")
    columns = tables.load_tables(file)[table]["columns"]
    for key, column in columns.items():
        if re.match(r"BLEU|chrF|test2017", column["title"]) and file == "translation":
            assert column["signature"], key
    for entry in tables.list_entries(file, table):
        assert {"command", "seeds", "machine", "date"} <= entry.keys(), entry
        assert entry["date"] is None or date.fromisoformat(entry["date"]) >= date(2026, 11, 15)
        figures = [entry[key] for key, column in columns.items() if "format" in column and key in entry]
        assert any(isinstance(figure, int | float | dict) for figure in figures) or "note" in entry, entry


def test_mean_and_deviation_of_a_result_are_those_of_its_seeds(tables: ModuleType) -> None:
    from statistics import fmean, stdev

    found = 0
    for name in NAMES:
        for entry in tables.list_entries(*name.split("/")):
            for figure in (value for value in entry.values() if isinstance(value, dict) and "mean" in value):
                if runs := figure.get("runs"):
                    found += 1
                    assert len(runs) == len(entry["seeds"])
                    assert figure["mean"] == pytest.approx(fmean(runs), abs=0.011)
                    assert figure["deviation"] == pytest.approx(stdev(runs), abs=0.011)
    assert found >= 6


def test_figures_are_formatted_with_deviation_range_and_ratio(tables: ModuleType) -> None:
    two = {"format": ".2f"}
    assert tables.format_figure({"mean": 42.0, "deviation": 0.5, "runs": [41.5, 42.5]}, two) == (
        "42.00 ± 0.50 (41.50, 42.50)"
    )
    assert tables.format_figure({"mean": 42.0, "deviation": 0.5, "runs": [41.5]}, {**two, "short": True}) == (
        "42.00 ± 0.50"
    )
    assert tables.format_figure({"value": 12000, "ratio": 2.0}, {"format": ",.0f"}) == "12,000 (2.00)"
    assert tables.format_figure({"value": 3, "range": [2, 4]}, {"format": ".0f", "unit": " ms"}) == "3 (2–4) ms"
    assert [tables.format_figure(value, two) for value in (None, "–")] == ["", "–"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_results_of_an_experiment_have_its_rows_and_claims(name: str, experiments: Any) -> None:
    experiment = EXPERIMENTS[name]
    results = experiments.load_results(experiment)
    assert list(results) == list(SCALES)
    for scale, table in results.items():
        assert [row["name"] for row in table["rows"]] == [row.name for row in experiment.rows(scale)]
        assert [claim["claim"] for claim in table["claims"]] == [claim.text for claim in experiment.claims]
        assert {claim["verdict"] for claim in table["claims"]} <= set(ClaimResult)
        assert {"command", "seeds", "machine", "date", "signature"} <= table.keys()
        assert all(row["measured"].keys() <= {*experiment.columns, "deviations"} for row in table["rows"])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_chart_of_an_experiment_has_the_figures_of_its_table(name: str, experiments: Any) -> None:
    texts = re.findall(r">([^<>]+)</text>", (DOCS / "images" / "reproduce" / f"{name}.svg").read_text(encoding="utf-8"))
    metric = experiments.choose_chart_metric(EXPERIMENTS[name])
    labels = iter(text.replace("\N{MINUS SIGN}", "-") for text in texts)
    for table in experiments.load_results(EXPERIMENTS[name]).values():
        for row in table["rows"]:
            value = format(row["measured"].get(metric, 0), find_metric(metric).number_format)
            assert value in labels, f"{row['name']} {value}: run python docs/tables.py"


def test_results_of_a_run_are_taken_over(experiments: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "RESULTS", tmp_path)
    runs = [
        {"run": f"runs/bahdanau2015-{seed}", "seed": seed, "changes": {"model.tie": tie}}
        for seed, tie in enumerate((True, False))
    ]
    table = {
        "experiment": "key-value",
        "scale": "small",
        "seeds": 2,
        "signature": None,
        "claims": [{"claim": "a", "whose": "paper", "verdict": "holds", "figures": "1"}],
        "rows": [
            {
                "name": "one memory",
                "runs": [run],
                "options": {"beam": 2},
                "measured": {"bleu": 1.5, "signature": "x"},
                "hardware": {"machine": "aarch64", "cores": 2, "gpu": None, "torch": "2.11"},
            }
            for run in runs
        ],
    }
    (tmp_path / "runs" / "key-value").mkdir(parents=True)
    (tmp_path / "runs" / "key-value" / "table.json").write_text(json.dumps(table), encoding="utf-8")
    (tmp_path / "key-value.json").write_text(json.dumps({"small": {"machine": "m"}, "full": {"seeds": 1}}))
    experiments.import_results(tmp_path / "runs")
    results = json.loads((tmp_path / "key-value.json").read_text(encoding="utf-8"))
    assert results["full"] == {"seeds": 1}
    small = results["small"]
    assert (small["command"], small["machine"]) == (
        "regard reproduce key-value --seeds 2",
        "aarch64, 2 cores, PyTorch 2.11",
    )
    assert small["claims"] == [{"claim": "a", "verdict": "holds", "figures": "1"}]
    assert small["rows"][1] == {
        "name": "one memory",
        "measured": {"bleu": 1.5},
        "trained_as": "`bahdanau2015 model.tie=False`; beam=2",
    }
    assert date.fromisoformat(small["date"]) <= date.today()
    assert small["signature"] is None


@pytest.mark.parametrize(
    ("seeds", "counted"),
    [([1], ""), ([1, 101], ", 2 seeds"), ([1, 1], ", 2 corpora"), ([1, 1, 2, 2], ", 2 seeds, 2 corpora")],
)
def test_models_of_two_corpora_are_not_called_seeds(experiments: Any, seeds: list[int], counted: str) -> None:
    runs = [
        {"run": f"runs/luong2015-global-{number}", "seed": seed, "changes": {}} for number, seed in enumerate(seeds)
    ]
    trained_as = experiments.format_trainings({"runs": runs, "options": {}}, set())
    assert trained_as == f"`luong2015-global`{counted}"
