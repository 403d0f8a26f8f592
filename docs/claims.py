"""Write the tables of one scale in `docs/reproduce.md` from the results of `regard reproduce --all`.

python docs/claims.py runs/reproduce/small
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from regard.report.html import load_macros
from regard.reproduce.experiments import EXPERIMENTS
from regard.reproduce.significance import ClaimResult
from regard.reproduce.tables import ORIGIN_TITLES, ResultTable, make_value_grid

PAGE = Path(__file__).parent / "reproduce.md"
ORIGINS = {"paper": "of the papers", "ours": "of our own", "definition": "that follow from what is compared"}
VERBS = {
    ClaimResult.HOLDS: ("holds", "hold"),
    ClaimResult.FAILS: ("does not hold here", "do not hold here"),
    ClaimResult.UNDECIDED: ("is not decided", "are not decided"),
}


def format_results(folder: Path) -> str:
    """Return a section for each experiment that was run."""
    paths = [folder / name / "table.json" for name in EXPERIMENTS]
    tables = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()]
    counts = [
        count_results(origin, [claim for table in tables for claim in table["claims"] if claim["whose"] == origin])
        for origin in ORIGINS
    ]
    return " ".join(filter(None, counts)) + "\n\n" + "\n".join(map(format_section, tables))


def count_results(origin: str, claims: list[dict[str, str]]) -> str:
    """Return a sentence with the number of claims that hold."""
    verdicts = Counter(ClaimResult(claim["verdict"]) for claim in claims)
    count = ", ".join(f"{number} {VERBS[verdict][number > 1]}" for verdict, number in verdicts.most_common())
    return f"Of {len(claims)} claims {ORIGINS[origin]} {count}." if claims else ""


def format_section(table: ResultTable) -> str:
    """Return one experiment: its claims, and its rows with the recipes that were trained."""
    experiment = EXPERIMENTS[table["experiment"]]
    head, rows = make_value_grid(table, experiment.columns)
    keys = find_differing_keys(table["rows"])
    trained = [format_trainings(row, keys) for row in table["rows"]]
    markdown = load_macros("regard.reproduce", "tables.md.j2")
    values = markdown.grid([*head, "trained as"], [[*cells, runs] for cells, runs in zip(rows, trained, strict=True)])
    seeds = max(row["measured"].get("seeds", 1) for row in table["rows"])
    scale = "" if table["scale"] == "small" else f" --scale {table['scale']}"
    command = f"regard reproduce {experiment.name}{scale}" + (f" --seeds {seeds}" if seeds > 1 else "")
    return (
        f"### {experiment.title}\n\n{experiment.source}.\n\n{experiment.description}\n\n"
        f"```\n{command}\n```\n\n{markdown.claims(table, ORIGIN_TITLES)}\n{values}"
    )


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
    return {
        key for key in several | {one for one in OPTIONAL if 0 < named[one] < count} if not key.startswith("training.")
    }


OPTIONAL = {
    "model.positions",
    "model.reverse",
    "model.score",
    "model.estimator",
    "model.decode",
    "model.key_value",
    "model.doubly_stochastic",
    "model.cell",
    "model.network",
    "model.delay",
    "model.input_feeding",
}


def format_trainings(row: dict[str, Any], keys: set[str]) -> str:
    """Return the recipes of a row with the keys that distinguish it, and its search options."""
    runs = []
    for run in row["runs"]:
        special = [f"{key}={value}" for key, value in run["changes"].items() if key in keys]
        recipe = Path(run["run"]).name.rsplit("-", 1)[0]
        runs.append(f"`{' '.join([recipe, *special])}`")
    options = [f"{key}={value}" for key, value in row["options"].items()]
    counted = [f"{run}, {count} seeds" if count > 1 else run for run, count in Counter(runs).items()]
    return "; ".join([*counted, *options])


def main() -> None:
    """Replace the tables of the scale in the page."""
    folder, page = Path(sys.argv[1]), PAGE.read_text(encoding="utf-8")
    begin, end = (f"<!-- {folder.name}: {position} -->\n" for position in ("begin", "end"))
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    PAGE.write_text(f"{before}{begin}\n{format_results(folder)}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
