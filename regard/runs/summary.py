"""What a run's folder says of it, without PyTorch: a hundred runs are listed in a moment."""

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

CONFIG, METRICS, STATE, MODEL = "config.yaml", "metrics.jsonl", "state.json", "model.safetensors"
TRACES = ("tokenizer", "checkpoints", METRICS)  # what training leaves behind where it ended before there was a config
STEP = re.compile(r"step-(\d+)")
DEPTH = 4  # folders that may stand in one another above a run
LARGE = 1e300  # no figure of a run is; JSON has numbers that no float can hold
HEADER = 1 << 26  # bytes; the header of a file that says more is not one

# libyaml, where PyYAML was built with it, reads a config ten times as fast.
Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Validated:
    """What a validation found."""

    step: int
    score: float | None
    measure: str  # what the score is
    loss: float | None
    perplexity: float | None


@dataclass(frozen=True)
class Summary:
    """A run in figures; None is what nothing on the disk tells."""

    folder: Path
    damage: str | None = None  # what is wrong with it, where something is
    recipe: str | None = None
    config: Mapping[str, Any] | None = None
    parameters: int | None = None
    steps: int = 0
    epochs: float | None = None
    best: Validated | None = None  # of the model that translates
    tokens_per_second: float | None = None  # the median
    seconds: float | None = None  # of training
    written: float | None = None  # when something was written last, in seconds since 1970
    finished: bool = False


class Damaged(Exception):  # noqa: N818 - what is found, and told in the list
    """A file of a run that cannot be read."""


def found(folder: Path) -> list[Path]:
    """The run that a folder is, or the runs in it, at any depth within reason; half-made ones, too."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; `regard train` writes a run into a folder in `runs`")
    return sorted(runs_in(folder, DEPTH))


def runs_in(folder: Path, depth: int) -> Iterator[Path]:
    """A run has no runs in it."""
    if (folder / CONFIG).is_file() or any((folder / trace).exists() for trace in TRACES):
        yield folder
    elif depth:
        for inner in folder.iterdir():
            if inner.is_dir() and not inner.name.startswith("."):
                yield from runs_in(inner, depth - 1)


def summary(folder: Path) -> Summary:
    """What a run has come to; where a file of it cannot be read, that is what there is to say."""
    try:
        return read(folder)
    except Damaged as damage:
        return Summary(folder, damage=str(damage))
    except OSError as error:
        return Summary(folder, damage=f"{Path(error.filename or folder).name}: {error.strerror or error}")


def read(folder: Path) -> Summary:
    """A run of which everything can be read."""
    config = read_config(folder / CONFIG)
    rows = read_metrics(folder / METRICS)
    newest = newest_checkpoint(folder)
    state = read_state(newest / STATE) if newest else {}
    learning = [row for row in rows if row.get("kind") == "train"]
    speeds = [row["tokens_per_second"] for row in learning if is_number(row.get("tokens_per_second"))]
    steps = state.get("step", rows[-1]["step"] if rows else 0)
    return Summary(
        folder,
        damage=None if newest else "it has no checkpoint yet",
        recipe=str(config.get("recipe", "?")),
        config=config,
        parameters=parameters(newest / MODEL) if newest else None,
        steps=steps,
        epochs=number(state, "epochs"),
        best=best_of(state, [row for row in rows if row.get("kind") == "dev"]),
        tokens_per_second=statistics.median(speeds) if speeds else None,
        seconds=number(state, "seconds"),
        written=max(path.stat().st_mtime for path in touched(folder, newest)),
        finished=is_finished(config["training"], state),
    )


def touched(folder: Path, newest: Path | None) -> Iterator[Path]:
    """Files whose times tell when training wrote last."""
    yield folder / CONFIG
    if (folder / METRICS).is_file():
        yield folder / METRICS
    if newest:
        yield newest / STATE


def read_config(path: Path) -> dict[str, Any]:
    """The run's config."""
    if not path.is_file():
        raise Damaged(f"it has no {path.name}: training ended before it began")
    try:
        config = yaml.load(path.read_bytes(), Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Damaged(f"{path.name} is not YAML") from error
    if not isinstance(config, dict) or not isinstance(config.get("training"), dict):
        raise Damaged(f"{path.name} is not a run's config: it has no section 'training'")
    return config


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """What was measured; a last line that a kill cut short is left out."""
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Damaged(f"{path.name}:{number} is not JSON") from error
        if not isinstance(row, dict) or not is_step(row.get("step")):
            raise Damaged(f"{path.name}:{number} says nothing of a step")
        rows.append(row)
    return rows


def newest_checkpoint(folder: Path) -> Path | None:
    """That of the last step."""
    steps = [(int(match[1]), path) for path in folder.glob("checkpoints/*") if (match := STEP.fullmatch(path.name))]
    return max(steps)[1] if steps else None


def read_state(path: Path) -> dict[str, Any]:
    """What a checkpoint knows of training."""
    try:
        state = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{path.parent.name}/{path.name} cannot be read") from error
    if not isinstance(state, dict) or not is_step(state.get("step")):
        raise Damaged(f"{path.parent.name}/{path.name} says nothing of a step")
    return state


def parameters(path: Path) -> int | None:
    """How many numbers the model has, from the header of its file alone; None where that cannot be read."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size)) if size < HEADER else {}
        return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__") or None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def is_number(value: Any) -> bool:
    """Whether it is one that can be reckoned with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGE


def is_step(value: Any) -> bool:
    """Whether it can be the number of an update."""
    return isinstance(value, int) and is_number(value) and value >= 0


def number(row: Mapping[str, Any], name: str) -> float | None:
    """A figure of a row, where it has it."""
    value: Any = row.get(name)
    return float(value) if is_number(value) else None


def best_of(state: Mapping[str, Any], rows: list[dict[str, Any]]) -> Validated | None:
    """The validation of the model that translates; without a checkpoint, the last that there was."""
    best = state.get("best")
    known = [row for row in rows if isinstance(best, dict) and row["step"] == best.get("step")]
    if known or not isinstance(best, dict):
        return next((validated(row) for row in (known or rows)[-1:]), None)
    told = {"score": best.get("bleu"), "measure": "bleu", **best}  # as the first release had it
    step, measure = int(number(best, "step") or 0), str(told["measure"])
    return Validated(step, number(told, "score"), measure, number(best, "loss"), None)


def validated(row: Mapping[str, Any]) -> Validated:
    """A row of validation."""
    measure = str(row.get("measure", "bleu"))
    return Validated(row["step"], number(row, measure), measure, number(row, "loss"), number(row, "perplexity"))


def is_finished(training: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether training reached one of its limits: steps, epochs or patience of the `training` section."""
    if not state:
        return False
    limits = [
        (number(training, "steps"), number(state, "step")),
        (number(training, "epochs"), number(state, "epochs")),
        (number(training, "patience"), number(state, "bad_validations")),
    ]
    return any(limit is not None and come is not None and come >= limit for limit, come in limits)
