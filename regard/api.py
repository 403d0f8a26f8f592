"""What `import regard` offers beside the rooms: train, and load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard import training
from regard.console import is_rank0
from regard.errors import UserError
from regard.report import write_report
from regard.runs import Run
from regard.tasks import get_task
from regard.training import Paths

__all__ = ["load", "train"]


def load(*runs: str | Path, device: str | None = None) -> Any:
    """What works with the best model of a run: a `Translator`, or what its task has in its place.

    Several runs that translate, with the same vocabularies, are an ensemble.
    """
    if not runs:
        raise UserError("no run to load")
    return get_task(Run(Path(runs[0])).read_config()).load(*runs, device=device)


def train(
    recipe: str | Path | Mapping[str, Any] | None,
    data: Paths | None,
    out: str | Path,
    *,
    dev: Paths | None = None,
    resume: bool = False,
    **overrides: Any,
) -> Run:
    """Trains a recipe (a name, a file or a mapping) on text, writes the report, and gives back the run.

    `data` and `dev` are each one file that holds pairs or two text files, source first; without `dev` some of `data` is
    held out. Overrides are dotted keys: `regard.train("default", "de-en.tsv", "runs/a", **{"model.size": 256})`. With
    `resume` the run in `out` goes on: its own config counts, and a recipe of another name is refused.
    """
    run = training.train(recipe, data, out, dev=dev, resume=resume, **overrides)
    if is_rank0():
        write_report(run)
    return run
