"""Writes the tables of `docs/reproduce.md`, those of one scale, from what `regard reproduce --all` left in a folder.

python docs/claims.py runs/reproduce/small
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from regard.reproduce import EXPERIMENTS
from regard.reproduce.significance import ClaimResult
from regard.reproduce.tables import (
    ORIGIN_TITLES,
    format_markdown_table,
    format_metric,
    format_metric_title,
    format_metric_with_deviation,
)

PAGE = Path(__file__).parent / "reproduce.md"
KINDS = {"paper": "of the papers", "ours": "of our own", "definition": "that follow from what is compared"}
SAID = {
    ClaimResult.HOLDS: ("holds", "hold"),
    ClaimResult.FAILS: ("does not hold here", "do not hold here"),
    ClaimResult.UNDECIDED: ("is not decided", "are not decided"),
}


def written(folder: Path) -> str:
    """A section for each experiment that was run."""
    found = [folder / name / "table.json" for name in EXPERIMENTS]
    told = [json.loads(path.read_text(encoding="utf-8")) for path in found if path.is_file()]
    counts = [
        counted(kind, [claim for one in told for claim in one["claims"] if claim["whose"] == kind]) for kind in KINDS
    ]
    return " ".join(filter(None, counts)) + "\n\n" + "\n".join(map(section, told))


def counted(kind: str, claims: list[dict[str, str]]) -> str:
    """How many hold, in a sentence."""
    verdicts = Counter(ClaimResult(claim["verdict"]) for claim in claims)
    count = ", ".join(f"{number} {SAID[verdict][number > 1]}" for verdict, number in verdicts.most_common())
    return f"Of {len(claims)} claims {KINDS[kind]} {count}." if claims else ""


def section(told: dict[str, Any]) -> str:
    """One experiment: its claims, and its rows with what makes each of them."""
    experiment = EXPERIMENTS[told["experiment"]]
    claims = format_markdown_table(
        ["claim", "whose", "verdict", "figures"],
        [
            [claim["claim"], ORIGIN_TITLES[claim["whose"]], f"**{claim['verdict']}**", claim["figures"]]
            for claim in told["claims"]
        ],
    )
    columns = experiment.columns
    papers = [name for name in columns if any(name in row["published"] for row in told["rows"])]
    keys = differing(told["rows"])
    rows = [
        [
            row["name"],
            *(format_metric_with_deviation(name, row["measured"]) for name in columns),
            *(format_metric(name, row["published"].get(name)) for name in papers),
            made(row, keys),
        ]
        for row in told["rows"]
    ]
    seeds = max(row["measured"].get("seeds", 1) for row in told["rows"])
    scale = "" if told["scale"] == "small" else f" --scale {told['scale']}"
    command = f"regard reproduce {experiment.name}{scale}" + (f" --seeds {seeds}" if seeds > 1 else "")
    head = [
        "",
        *map(format_metric_title, columns),
        *(f"{format_metric_title(name)}, paper" for name in papers),
        "trained as",
    ]
    return (
        f"### {experiment.title}\n\n{experiment.source}.\n\n{experiment.description}\n\n"
        f"```\n{command}\n```\n\n{claims}\n{format_markdown_table(head, rows)}"
    )


def differing(rows: list[dict[str, Any]]) -> set[str]:
    """The keys that make one row another: not the same in all runs, and not how they are trained."""
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


def made(row: dict[str, Any], keys: set[str]) -> str:
    """Recipes and what is special in them; how the models are asked."""
    runs = []
    for run in row["runs"]:
        special = [f"{key}={value}" for key, value in run["changes"].items() if key in keys]
        recipe = Path(run["run"]).name.rsplit("-", 1)[0]
        runs.append(f"`{' '.join([recipe, *special])}`")
    asked = [f"{key}={value}" for key, value in row["options"].items()]
    counted = [f"{run}, {count} seeds" if count > 1 else run for run, count in Counter(runs).items()]
    return "; ".join([*counted, *asked])


def main() -> None:
    """Puts the tables where they belong."""
    folder, page = Path(sys.argv[1]), PAGE.read_text(encoding="utf-8")
    begin, end = (f"<!-- {folder.name}: {place} -->\n" for place in ("begin", "end"))
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    PAGE.write_text(f"{before}{begin}\n{written(folder)}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
