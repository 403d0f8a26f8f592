"""Summaries of runs for `regard runs`, read without PyTorch, so that many runs are listed quickly."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.runs.checkpoint import MODEL_FILE, STATE_FILE, read_state
from regard.runs.run import Run

_Rows = Iterator[dict[str, Any]]
_RUN_FILES = ("config.yaml", "tokenizer", "checkpoints", "metrics.jsonl")  # training may end before it writes the first
_MAX_DEPTH = 4  # nested folders that are searched for runs
_MAX_MAGNITUDE = 1e300  # larger numbers in JSON, some beyond the range of float, are damage
_MAX_HEADER_BYTES = 1 << 26  # a safetensors file that claims a longer header is damaged


@dataclass(frozen=True)
class ValidationSummary:
    """Result of one validation."""

    step: int
    score: float | None
    measure: str  # metric of the score
    loss: float | None
    perplexity: float | None


@dataclass(frozen=True)
class RunSummary:
    """Key figures of a run; None if unknown."""

    folder: Path
    damage: str | None = None  # description of a problem
    recipe: str | None = None
    config: Mapping[str, Any] | None = None
    parameters: int | None = None
    steps: int = 0
    epochs: float | None = None
    best: ValidationSummary | None = None  # of the model that is used
    tokens_per_second: float | None = None  # median
    seconds: float | None = None  # training time
    written: float | None = None  # time of the last write, in seconds since 1970
    finished: bool = False


def find_runs(folder: Path) -> list[Path]:
    """Return the folder itself if it is a run, else the runs inside it, incomplete ones included."""
    if not folder.is_dir():
        raise UserError(f"folder {folder} does not exist; `regard train` writes runs to the folder `runs`")
    return sorted(_iterate_runs(folder, _MAX_DEPTH))


def _iterate_runs(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the runs in a folder; runs are not searched for further runs."""
    if any((folder / name).exists() for name in _RUN_FILES):
        yield folder
    elif depth:
        for inner in folder.iterdir():
            if inner.is_dir() and not inner.name.startswith("."):
                yield from _iterate_runs(inner, depth - 1)


def summarize_run(folder: Path, iterate: Callable[[_Rows], _Rows] = iter) -> RunSummary:
    """Return the summary of a run; if a file cannot be read, only its `damage` is set.

    `iterate` may pause between rows of metrics, which a long training has many of.
    """
    try:
        return _read_summary(Run(folder), iterate)
    except UserError as error:
        return RunSummary(folder, damage=str(error).replace(f"{folder}/", ""))
    except OSError as error:
        return RunSummary(folder, damage=f"{Path(error.filename or folder).name}: {error.strerror or error}")


def _read_summary(run: Run, iterate: Callable[[_Rows], _Rows]) -> RunSummary:
    """Read all files of a run; raise UserError or OSError if one is damaged."""
    if not run.exists:
        raise UserError(f"it has no {run.config_path.name}: training ended before the first update")
    config, steps, last_step = run.read_config(), run.list_steps(), 0
    dev_rows: list[dict[str, Any]] = []
    speeds: list[float] = []
    for row in iterate(run.iterate_metrics()):
        last_step = row["step"]
        if row["kind"] == "dev":
            dev_rows.append(row)
        elif row["kind"] == "train" and _is_plausible_number(row.get("tokens_per_second")):
            speeds.append(row["tokens_per_second"])
    newest = run.checkpoint_folder(steps[-1]) if steps else None
    state = read_state(newest) if newest else {}
    written = [run.config_path, run.metrics_path, *([newest / STATE_FILE] if newest else [])]
    return RunSummary(
        run.folder,
        damage=None if newest else "it has no checkpoint yet",
        recipe=str(config.get("recipe", "?")),
        config=config,
        parameters=_count_parameters(newest / MODEL_FILE) if newest else None,
        steps=steps[-1] if steps else last_step,
        epochs=_get_number(state, "epochs"),
        best=_find_best_validation(state, dev_rows),
        tokens_per_second=statistics.median(speeds) if speeds else None,
        seconds=_get_number(state, "seconds"),
        written=max(path.stat().st_mtime for path in written if path.is_file()),
        finished=is_finished(config["training"], state),
    )


def _count_parameters(path: Path) -> int | None:
    """Return the number of parameters from the header of a safetensors file; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size)) if size < _MAX_HEADER_BYTES else {}
        return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__") or None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _is_plausible_number(value: Any) -> bool:
    """Return whether a JSON value is a number within the range of float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_MAGNITUDE


def _get_number(row: Mapping[str, Any], name: str) -> float | None:
    """Return a number of a row, or None if it is missing or invalid."""
    value: Any = row.get(name)
    return float(value) if _is_plausible_number(value) else None


def _find_best_validation(state: Mapping[str, Any], rows: list[dict[str, Any]]) -> ValidationSummary | None:
    """Return the validation of the model that is used; without a checkpoint, the last validation."""
    best = state.get("best")
    best_rows = [row for row in rows if isinstance(best, dict) and row["step"] == best.get("step")]
    if best_rows or not isinstance(best, dict):
        return next((_parse_validation_row(row) for row in (best_rows or rows)[-1:]), None)
    record = {"score": best.get("bleu"), "measure": "bleu", **best}  # format of the first release
    step, measure = int(_get_number(best, "step") or 0), str(record["measure"])
    return ValidationSummary(step, _get_number(record, "score"), measure, _get_number(best, "loss"), None)


def _parse_validation_row(row: Mapping[str, Any]) -> ValidationSummary:
    measure = str(row.get("measure", "bleu"))
    return ValidationSummary(
        row["step"], _get_number(row, measure), measure, _get_number(row, "loss"), _get_number(row, "perplexity")
    )


def is_finished(training: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Return whether training has reached a limit of the `training` section: steps, epochs or patience."""
    if not state:
        return False
    limits = [
        (_get_number(training, "steps"), _get_number(state, "step")),
        (_get_number(training, "epochs"), _get_number(state, "epochs")),
        (_get_number(training, "patience"), _get_number(state, "bad_validations")),
    ]
    return any(limit is not None and value is not None and value >= limit for limit, value in limits)
