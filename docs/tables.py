"""Write the tables of results in the pages, and the pages of the experiments, from the JSON files in `docs/results`.

`python docs/tables.py` rewrites what lies between `<!-- table: FILE/NAME -->` and `<!-- end of table -->`, and writes
the pages and charts in `docs/reproduce`. A test compares pages and JSON.

A file holds tables by name. A table has `columns` (key → title, and for figures `format`, `unit` and `signature`) and
`entries`. `command`, `seeds` (of experiments their number), `machine` and `date` are those of a table's entries, unless
an entry has its own; `date` is the day on which the figures were entered, null if it is unknown.

A figure is a number or an object with `value` or `mean`, and `deviation`, `runs` (one per seed), `range` or `ratio`. A
figure `{"of": "FILE/NAME/ID/COLUMN"}` or `{"of": "reproduce/EXPERIMENT/SCALE/ROW/METRIC"}` is another one, so that each
is written once.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import experiments

from regard.reproduce.experiments import EXPERIMENTS
from regard.reproduce.significance import DEVIATIONS_KEY

DOCS = Path(__file__).parent
TABLE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
PROVENANCE = ("command", "seeds", "machine", "date")


@cache
def load_tables(file: str) -> dict[str, Any]:
    """Return the tables of a file in `docs/results`, by name."""
    tables: dict[str, Any] = json.loads((DOCS / "results" / f"{file}.json").read_text(encoding="utf-8"))
    return tables


def list_entries(file: str, name: str) -> list[dict[str, Any]]:
    """Return the entries of a table with the table's provenance, and with the figures that they refer to."""
    table = load_tables(file)[name]
    defaults = {key: table[key] for key in PROVENANCE if key in table}
    return [{**defaults, **_resolve_entry(entry)} for entry in table["entries"]]


def _resolve_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """Replace references in an entry by what they refer to."""
    resolved = dict(entry)
    for key, value in entry.items():
        if isinstance(value, dict) and "of" in value:
            path, _, column = value["of"].rpartition("/")
            origin = find_row(path) if path.startswith("reproduce/") else find_entry(path)
            resolved = {**{name: origin[name] for name in PROVENANCE}, **resolved, key: origin[column]}
    return resolved


def find_entry(path: str) -> dict[str, Any]:
    """Return the entry at FILE/NAME/ID."""
    file, name, identifier = path.split("/")
    (entry,) = (entry for entry in list_entries(file, name) if entry.get("id") == identifier)
    return entry


def find_row(path: str) -> dict[str, Any]:
    """Return the figures at reproduce/EXPERIMENT/SCALE/ROW with their deviations and provenance."""
    _, name, scale, identifier = path.split("/")
    table = experiments.load_results(EXPERIMENTS[name])[scale]
    (measured,) = (row["measured"] for row in table["rows"] if row["name"] == identifier)
    deviations = measured.get(DEVIATIONS_KEY, {})
    figures = {key: {"mean": measured[key], "deviation": deviation} for key, deviation in deviations.items()}
    return {**table, **measured, **figures}


def format_figure(value: Any, column: dict[str, Any]) -> str:
    """Format a figure with its deviation, range, runs or ratio; text stays as it is.

    >>> format_figure({"mean": 42.02, "deviation": 0.44, "runs": [41.57, 42.4]}, {"format": ".2f"})
    '42.02 ± 0.44 (41.57, 42.40)'
    """
    if value is None or isinstance(value, str):
        return value or ""

    def style(number: float) -> str:
        return format(number, column["format"])

    figure: dict[str, Any] = value if isinstance(value, dict) else {"value": value}
    parts = [style(number) for number in (figure.get("mean", figure.get("value")),) if number is not None]
    if "deviation" in figure:
        parts.append(f"± {style(figure['deviation'])}")
    if "range" in figure:
        interval = "–".join(map(style, figure["range"]))
        parts.append(f"({interval})" if parts else interval)
    if "runs" in figure and not column.get("short"):
        parts.append(f"({', '.join(map(style, figure['runs']))})")
    if "ratio" in figure:
        parts.append(f"({figure['ratio']:.2f})")
    return " ".join(parts) + str(column.get("unit", ""))


def make_table(file: str, name: str) -> str:
    """Return a table as Markdown."""
    columns = load_tables(file)[name]["columns"]
    rows = [[column["title"] for column in columns.values()], ["---"] * len(columns)]
    for entry in list_entries(file, name):
        rows.append([format_figure(entry.get(key), column) for key, column in columns.items()])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def fill_tables(text: str) -> str:
    """Return a page with its tables as the JSON files have them."""

    def replace(match: re.Match[str]) -> str:
        begin, path, end = match.groups()
        file, _, name = path.partition("/")
        table = SPECIAL[path]() + "\n" if path in SPECIAL else make_table(file, name)
        return f"{begin}\n{table}\n{end}"

    return TABLE.sub(replace, text)


SPECIAL = {"reproduce/matrix": experiments.make_matrix, "reproduce/counts": experiments.make_counts}


def make_pages() -> dict[Path, str]:
    """Return path → text of all pages with tables from JSON."""
    pages = experiments.make_pages()
    for path in [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        if path not in pages and TABLE.search(text):
            pages[path] = fill_tables(text)
    return pages


def main() -> None:
    """Write the pages and draw the charts."""
    for path, text in make_pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    experiments.draw_charts()


if __name__ == "__main__":
    main()
