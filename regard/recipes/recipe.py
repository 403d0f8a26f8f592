"""Recipes: YAML files with everything that makes a model, and the keys that a user changes in them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from regard.errors import UserError, nearest

FOLDER = Path(__file__).parent
SECTIONS = ("model", "loss", "text", "data", "training")

Recipe = dict[str, Any]


def names() -> list[str]:
    """The recipes that come with regard."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def text(name: str) -> str:
    """A recipe as it is written, comments and all."""
    path = FOLDER / f"{name}.yaml"
    if name not in names():
        raise UserError(f"there is no recipe {name!r}{nearest(name, names())}")
    return path.read_text(encoding="utf-8")


def read(name: str | Path) -> Recipe:
    """A recipe by its name, or from a file of one's own, which may build on another with `base: NAME`."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UserError(f"there is no recipe file {path}")
        return on_base(parsed(path.read_text(encoding="utf-8"), str(path)), str(path))
    return parsed(text(str(name)), str(name)) | {"recipe": str(name)}


def on_base(own: Recipe, where: str) -> Recipe:
    """A user's recipe over the one that it names as its base."""
    base = own.pop("base", None)
    if base is None:
        return {"recipe": Path(where).stem} | own
    flat = {f"{section}.{key}": value for section in SECTIONS for key, value in own.get(section, {}).items()}
    top = {key: value for key, value in own.items() if key not in SECTIONS}
    return override(read(base), flat) | {"recipe": Path(where).stem} | top


def parsed(written: str, where: str) -> Recipe:
    """YAML as a mapping of sections."""
    try:
        recipe = yaml.safe_load(written)
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(recipe, dict):
        raise UserError(
            f"{where} is not a recipe: it holds {type(recipe).__name__}, not sections like model and training"
        )
    for key, value in recipe.items():
        if key not in (*SECTIONS, "base", "paper", "task", "recipe"):
            raise UserError(f"{where}: unknown section {key!r}{nearest(str(key), SECTIONS)}")
        if key in SECTIONS and not isinstance(value, dict):
            raise UserError(f"{where}: section {key!r} holds keys with values, not {value!r}")
    return recipe


def override(recipe: Mapping[str, Any], changes: Mapping[str, Any]) -> Recipe:
    """A copy with dotted keys changed: `{"model.size": 256}`.

    A new `model.size` carries `model.embedding` with it, unless that is given too: in a recipe the two are widths of
    one model, and the paper's 620 beside 1000 means nothing beside 64.
    """
    changed = copy.deepcopy(dict(recipe))
    known = {f"{section}.{key}" for section in SECTIONS for key in changed.get(section, {})}
    for key, value in changes.items():
        if key not in known:
            raise UserError(f"recipe {recipe.get('recipe', '')!r} has no key {key!r}{nearest(key, known)}")
        section, name = key.split(".", 1)
        changed[section][name] = value
    if "model.size" in changes and "model.embedding" not in changes and "embedding" in changed["model"]:
        changed["model"]["embedding"] = None
    return changed


def parse_override(argument: str) -> tuple[str, Any]:
    """`model.size=256` -> ("model.size", 256); the value is read as YAML."""
    key, _, value = argument.partition("=")
    try:
        return key.strip(), yaml.safe_load(value)
    except yaml.YAMLError:
        return key.strip(), value
