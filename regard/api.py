"""The Python API of `import regard`: `train` and `load`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard import training
from regard.console import is_rank0
from regard.errors import UserError
from regard.report.html import write_report
from regard.runs import Run
from regard.tasks import get_task
from regard.training.train import Paths

if TYPE_CHECKING:
    import torch

__all__ = ["load", "train"]


def load(*runs: str | Path, device: str | torch.device | None = None) -> Any:
    """Load the best model of a run: a `Translator`, or the predictor of the run's task.

    Several translation runs with the same vocabularies are loaded as an ensemble.
    """
    if not runs:
        raise UserError("no run to load: give at least one run folder")
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
    """Train a recipe (a name, a file or a mapping) on text, write the report, and return the run.

    `data` and `dev` are each one file of sentence pairs or two text files, source first; without `dev` a part of `data`
    is held out. Overrides are dotted keys: `regard.train("default", "de-en.tsv", "runs/a", **{"model.size": 256})`.
    With `resume` training of the run in `out` is resumed with its own config; a recipe of another name is refused.
    """
    run = training.train(recipe, data, out, dev=dev, resume=resume, **overrides)
    if is_rank0():
        write_report(run)
    return run
