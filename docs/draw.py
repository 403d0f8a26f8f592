"""Write `results/learn.json` from the runs of `make learn`; `docs/examples.py` draws pictures of them.

`python docs/tables.py` writes the table of the page from the JSON file.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RUNS = DOCS.parent / "runs" / "learn"


def main() -> None:
    """Write an entry for every run."""
    entries = []
    for folder in sorted(RUNS.iterdir()):
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        entries.append(make_entry(folder.name, results))
    path = DOCS / "results" / "learn.json"
    tables = json.loads(path.read_text(encoding="utf-8"))
    tables["models"] |= {"date": date.today().isoformat(), "entries": entries}
    path.write_text(json.dumps(tables, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def make_entry(name: str, results: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a run for `results/learn.json`."""
    changed = ", ".join(f"`{key}={value}`" for key, value in results["changes"].items()) or "–"
    digits = {"bleu": 1, "chrf": 1, "aer": 3}
    figures = {key: "–" if results[key] is None else round(results[key], count) for key, count in digits.items()}
    return {"id": name, "model": name, "recipe": f"`{results['recipe']}`", "changed": changed, **figures}


if __name__ == "__main__":
    main()
