"""The config of a run: of a recipe, of another run, or of the run itself where that goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from regard.config import parse
from regard.data.corpus import languages
from regard.data.settings import DataSettings, corpora
from regard.errors import UserError
from regard.models import build
from regard.recipes import Recipe, override, read, sized
from regard.runs import Run
from regard.text import TextSettings
from regard.training.settings import TrainingSettings

Named = str | Path | Mapping[str, Any] | None  # a recipe: its name, its file, or itself

CHANGEABLE = (
    "steps",
    "epochs",
    "patience",
    "validate_every",
    "checkpoint_every",
    "keep",
    "keep_best",
    "average",
    "bad_updates",
    "log_every",
    "tensorboard",
    "device",
)


def beginning(run: Run, recipe: Named, changes: Mapping[str, Any]) -> Recipe:
    """The config of a new run; one that exists is never overwritten."""
    refuse_another(run)
    if run.folder.exists() and not run.folder.is_dir():
        raise UserError(f"{run.folder} is a file; choose another --out")
    start = changes.get("training.init_from")
    if recipe is None and start:
        config = again(Run(Path(start)).config())
    else:
        config = dict(recipe) if isinstance(recipe, Mapping) else read(recipe or "default")
    start = start or config.get("training", {}).get("init_from")
    return override(inherited(config, Run(Path(start))) if start else config, changes)


def refuse_another(run: Run) -> None:
    """A run that is there is not begun again."""
    if run.steps():
        raise UserError(f"{run.folder} already holds a run; go on with it by --resume, or choose another --out")


def began_with(run: Run, changes: Mapping[str, Any]) -> None:
    """Refuses a restart that is not of the command which began the run: a run is never taken for another."""
    config = run.config()
    for key, value in changes.items():
        section, _, name = key.partition(".")
        asked = [str(Path(path).absolute()) for path in value] if key in ("data.train", "data.dev") else value
        if key != "data.max_length" and config.get(section, {}).get(name) != asked:  # which is what was found instead
            raise UserError(f"{run.folder} already holds a run, which began with another {key}; choose another --out")


def again(config: Recipe) -> Recipe:
    """A run's config as a recipe: without the data that it was trained on."""
    names = ("train", "dev", "weights", "tags", "alignments", "max_length")
    return override(config, {f"data.{name}": getattr(DataSettings(), name) for name in names})


def inherited(config: Recipe, parent: Run) -> Recipe:
    """The recipe with the model and the vocabularies of the run that it starts from: weights fit nothing else."""
    theirs = parent.config()
    kept = {name: config["text"].get(name) for name in ("dropout",) if name in config.get("text", {})}
    return {**config, "model": theirs["model"], "text": {**theirs["text"], **kept}}


def going_on(run: Run, recipe: Named, changes: Mapping[str, Any]) -> Recipe:
    """The config of a run that goes on: how long it goes on may change, not what makes it the same run."""
    allowed = ["data.train", "data.dev", "data.workers", "data.timeout", *(f"training.{name}" for name in CHANGEABLE)]
    config = run.config()
    if isinstance(recipe, str | Path) and read(recipe)["recipe"] != config.get("recipe"):
        raise UserError(
            f"{run.folder} is a run of the recipe {config.get('recipe')!r}, it cannot go on as {str(recipe)!r}"
        )
    for key, value in changes.items():
        section, _, name = key.partition(".")
        if key not in allowed and (name not in config.get(section, {}) or config[section][name] != value):
            raise UserError(
                f"{key} cannot change when a run goes on, it would be another run; {', '.join(allowed)} can"
            )
    if not run.steps():
        raise UserError(f"{run.folder} has no checkpoint yet; start it again without --resume")
    steps = config["training"]["steps"]
    if changes.get("training.steps", steps) != steps and config["training"]["schedule"] == "cosine":
        raise UserError(
            "training.steps cannot change when a run with the cosine schedule goes on: the rate depends on it"
        )
    return override(config, changes)


def check(config: Mapping[str, Any]) -> TrainingSettings:
    """Parses every section and builds the model without its numbers: a mistake shows before any work is done."""
    whole = sized(config)
    parse(TextSettings, whole.get("text", {}), "text")
    parse(DataSettings, whole.get("data", {}), "data")
    with torch.device("meta"):
        build(whole, 8, 8)
    return parse(TrainingSettings, whole.get("training", {}), "training")


def spoken(config: Mapping[str, Any]) -> Recipe:
    """The config with the languages that the first corpus says it is in: the others are read for these as well."""
    wanted = corpora(parse(DataSettings, config["data"], "data"))
    if not wanted:
        raise UserError("nothing to train on: name one file that holds pairs, or two text files, source first")
    first = wanted[0]
    asked = config["data"]["source"], config["data"]["target"]
    named = dict(zip(("source", "target"), languages(first.paths, *asked), strict=True))
    found = {f"data.{side}": config["data"][side] or (name if name != side else None) for side, name in named.items()}
    return override(config, found)


def located(config: Mapping[str, Any]) -> Recipe:
    """The config with its files named in full, so that the run can go on from anywhere."""
    named = {f"data.{name}": config["data"][name] for name in ("train", "dev") if config["data"][name]}
    changes: dict[str, Any] = {key: [str(Path(path).absolute()) for path in paths] for key, paths in named.items()}
    for key in ("data.alignments", "training.init_from"):
        section, name = key.split(".")
        if config[section].get(name):
            changes[key] = str(Path(config[section][name]).absolute())
    return override(config, changes)
