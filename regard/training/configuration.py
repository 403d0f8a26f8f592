"""The config of a run: of a recipe, of another run, or of the run itself where that goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from regard.config import parse
from regard.errors import UserError
from regard.models import outline
from regard.recipes import Recipe, override, read, sized
from regard.runs import Run
from regard.tasks import task_of
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
    "threads",
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
    config = filled(config)
    start = start or config["training"]["init_from"]
    return descended(config, Run(Path(start)), changes) if start else override(config, changes)


def filled(config: Mapping[str, Any]) -> Recipe:
    """The config with keys that it does not say, as those of older versions: they are what they are for everybody."""
    task = task_of(config)
    sections: dict[str, Any] = {"text": task.text, "data": task.data, "training": TrainingSettings}
    return {**config, **{name: {**usual(cls), **config.get(name, {})} for name, cls in sections.items()}}


def usual(section: Any) -> dict[str, Any]:
    """What the keys of a section are where nobody says them, as YAML has it."""
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in dataclasses.asdict(section()).items()
    }


def refuse_another(run: Run) -> None:
    """A run that is there is not begun again."""
    if run.steps():
        raise UserError(
            f"{run.folder} already holds a run; go on with it by --resume (resume=True), or choose another --out"
        )


def began_with(run: Run, changes: Mapping[str, Any]) -> None:
    """Refuses a restart that is not of the command which began the run: a run is never taken for another."""
    config = run.config()
    for key, value in changes.items():
        section, _, name = key.partition(".")
        asked = [str(Path(path).absolute()) for path in value] if key in ("data.train", "data.dev") else value
        if config.get(section, {}).get(name) != asked:
            raise UserError(f"{run.folder} already holds a run, which began with another {key}; choose another --out")


def again(config: Recipe) -> Recipe:
    """A run's config as a recipe: without the data that it was trained on."""
    gone = ["train", "dev", "weights", "tags", "alignments", "longest", "sentences"]
    if config["data"].get("longest") is None:  # an older run has in its place what was found
        gone.append("max_length")
    usual = task_of(config).data()
    data = {f"data.{name}": getattr(usual, name) for name in config["data"] if name in gone}
    return override(filled(config), {**data, "training.threads": None})


def descended(config: Recipe, parent: Run, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with the model and the vocabularies of the run that it starts from: weights fit nothing else."""
    theirs = parent.config()
    kinds = [one.get("model", {}).get("kind") for one in (config, theirs)]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"{parent.folder} is a model of the kind {kinds[1]}, and the recipe {config.get('recipe')!r} is for the "
            f"kind {kinds[0]}: leave the recipe out, or name one for {kinds[1]}"
        )
    kept = {name: config["text"][name] for name in ("dropout",) if name in config.get("text", {})}
    made = override({**config, "model": theirs["model"], "text": {**theirs["text"], **kept}}, changes)
    fits = shapes(made) == shapes(theirs)
    for section in ("text", "model"):
        for name, value in theirs[section].items():
            if made[section][name] != value and not (name == "dropout" if section == "text" else fits):
                raise UserError(
                    f"{section}.{name} is {value} in {parent.folder}, from which this run starts, and cannot be "
                    f"{made[section][name]}: its weights fit nothing else"
                )
    return made


def shapes(config: Recipe) -> dict[str, torch.Size]:
    """The weights of a model, by name, whatever its vocabularies."""
    return {name: tensor.shape for name, tensor in outline(sized(config), 8, 8).state_dict().items()}


def going_on(run: Run, recipe: Named, changes: Mapping[str, Any]) -> Recipe:
    """The config of a run that goes on: how long it goes on may change, not what makes it the same run."""
    allowed = ["data.train", "data.dev", "data.workers", "data.timeout", *(f"training.{name}" for name in CHANGEABLE)]
    config = filled(run.config())
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
    parse(task_of(whole).text, whole.get("text", {}), "text")
    parse(task_of(whole).data, whole.get("data", {}), "data")
    outline(whole, 8, 8)
    return parse(TrainingSettings, whole.get("training", {}), "training")


def located(config: Mapping[str, Any]) -> Recipe:
    """The config with its files named in full, so that the run can go on from anywhere."""
    named = {f"data.{name}": config["data"][name] for name in ("train", "dev") if config["data"][name]}
    changes: dict[str, Any] = {key: [str(Path(path).absolute()) for path in paths] for key, paths in named.items()}
    for key in ("data.alignments", "training.init_from"):
        section, name = key.split(".")
        if config[section].get(name):
            changes[key] = str(Path(config[section][name]).absolute())
    return override(config, changes)
