"""Summaries of runs for `regard runs`, read without PyTorch, so that many runs are listed quickly."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from regard.errors import UserError

_CONFIG_FILE, _METRICS_FILE, _STATE_FILE, _MODEL_FILE = (
    "config.yaml",
    "metrics.jsonl",
    "state.json",
    "model.safetensors",
)
_PARTIAL_RUN_FILES = ("tokenizer", "checkpoints", _METRICS_FILE)  # signs of a run that ended before it wrote its config
_CHECKPOINT_NAME = re.compile(r"step-(\d+)")
_MAX_DEPTH = 4  # nested folders that are searched for runs
_MAX_MAGNITUDE = 1e300  # larger numbers in JSON, some beyond the range of float, are damage
_MAX_HEADER_BYTES = 1 << 26  # a safetensors file that claims a longer header is damaged

# If PyYAML was built with libyaml, it reads a config ten times as fast.
_YamlLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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


class _UnreadableRunError(Exception):
    """File of a run that cannot be read."""


def find_runs(folder: Path) -> list[Path]:
    """Return the folder itself if it is a run, else the runs inside it, incomplete ones included."""
    if not folder.is_dir():
        raise UserError(f"folder {folder} does not exist; `regard train` writes runs to the folder `runs`")
    return sorted(_iterate_runs(folder, _MAX_DEPTH))


def _iterate_runs(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the runs in a folder; runs are not searched for further runs."""
    if (folder / _CONFIG_FILE).is_file() or any((folder / name).exists() for name in _PARTIAL_RUN_FILES):
        yield folder
    elif depth:
        for inner in folder.iterdir():
            if inner.is_dir() and not inner.name.startswith("."):
                yield from _iterate_runs(inner, depth - 1)


def summarize_run(folder: Path) -> RunSummary:
    """Return the summary of a run; if a file cannot be read, only its `damage` is set."""
    try:
        return _read_summary(folder)
    except _UnreadableRunError as damage:
        return RunSummary(folder, damage=str(damage))
    except OSError as error:
        return RunSummary(folder, damage=f"{Path(error.filename or folder).name}: {error.strerror or error}")


def _read_summary(folder: Path) -> RunSummary:
    """Read all files of a run; raise _UnreadableRunError or OSError if one is damaged."""
    config = _read_config_yaml(folder / _CONFIG_FILE)
    rows = _read_metrics_rows(folder / _METRICS_FILE)
    newest = _find_newest_checkpoint(folder)
    state = _read_state_json(newest / _STATE_FILE) if newest else {}
    train_rows = [row for row in rows if row.get("kind") == "train"]
    speeds = [row["tokens_per_second"] for row in train_rows if _is_plausible_number(row.get("tokens_per_second"))]
    steps = state.get("step", rows[-1]["step"] if rows else 0)
    return RunSummary(
        folder,
        damage=None if newest else "it has no checkpoint yet",
        recipe=str(config.get("recipe", "?")),
        config=config,
        parameters=_count_parameters(newest / _MODEL_FILE) if newest else None,
        steps=steps,
        epochs=_get_number(state, "epochs"),
        best=_find_best_validation(state, [row for row in rows if row.get("kind") == "dev"]),
        tokens_per_second=statistics.median(speeds) if speeds else None,
        seconds=_get_number(state, "seconds"),
        written=max(path.stat().st_mtime for path in _iterate_written_files(folder, newest)),
        finished=is_finished(config["training"], state),
    )


def _iterate_written_files(folder: Path, newest_checkpoint: Path | None) -> Iterator[Path]:
    """Yield the files whose modification times tell when training wrote last."""
    yield folder / _CONFIG_FILE
    if (folder / _METRICS_FILE).is_file():
        yield folder / _METRICS_FILE
    if newest_checkpoint:
        yield newest_checkpoint / _STATE_FILE


def _read_config_yaml(path: Path) -> dict[str, Any]:
    """Read the run's config."""
    if not path.is_file():
        raise _UnreadableRunError(f"it has no {path.name}: training ended before the first update")
    try:
        config = yaml.load(path.read_bytes(), _YamlLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _UnreadableRunError(f"{path.name} is not YAML") from error
    if not isinstance(config, dict) or not isinstance(config.get("training"), dict):
        raise _UnreadableRunError(f"{path.name} is not a run's config: it has no section 'training'")
    return config


def _read_metrics_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of `metrics.jsonl`; an incomplete last line is ignored."""
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _UnreadableRunError(f"{path.name}:{number} is not JSON") from error
        if not isinstance(row, dict) or not _is_step(row.get("step")):
            raise _UnreadableRunError(f"{path.name}:{number} has no valid step")
        rows.append(row)
    return rows


def _find_newest_checkpoint(folder: Path) -> Path | None:
    """Return the folder of the checkpoint with the highest step, or None."""
    steps = [
        (int(match[1]), path)
        for path in folder.glob("checkpoints/*")
        if (match := _CHECKPOINT_NAME.fullmatch(path.name))
    ]
    return max(steps)[1] if steps else None


def _read_state_json(path: Path) -> dict[str, Any]:
    """Read `state.json` of a checkpoint."""
    try:
        state = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _UnreadableRunError(f"{path.parent.name}/{path.name} cannot be read") from error
    if not isinstance(state, dict) or not _is_step(state.get("step")):
        raise _UnreadableRunError(f"{path.parent.name}/{path.name} has no valid step")
    return state


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


def _is_step(value: Any) -> bool:
    """Return whether a JSON value can be a step."""
    return isinstance(value, int) and _is_plausible_number(value) and value >= 0


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
