"""Recipes: YAML files with everything that makes a model, and the keys that a user changes in them."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from regard.errors import UserError, nearest, shown

FOLDER = Path(__file__).parent
SECTIONS = ("model", "loss", "text", "data", "training")
NEAR = 0.75  # how much of a dotted key another has where one is taken for the other; its section is most of it

Recipe = dict[str, Any]


class Loader(yaml.SafeLoader):
    """YAML in which only `true` and `false` are truth values, as in YAML 1.2: `data.target=no` is Norwegian."""


def whole(loader: Loader, node: yaml.ScalarNode) -> int:
    """A whole number that can be written down again; of thousands of hexadecimal digits Python can make none."""
    return int(str(loader.construct_yaml_int(node)))


# Beside its own errors PyYAML lets these through, of `!!int ''`, `!!bool x` and the like.
UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError, RecursionError)
TRUTH, WHOLE = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:int"
Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != TRUTH]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_constructor(WHOLE, whole)
Loader.add_implicit_resolver(TRUTH, re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF"))


def names() -> list[str]:
    """The recipes that come with regard."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def text(name: str) -> str:
    """A recipe as it is written, comments and all."""
    path = FOLDER / f"{name}.yaml"
    if name not in names():
        raise UserError(f"there is no recipe {name!r}{nearest(name, names())}")
    return path.read_text(encoding="utf-8")


def about(name: str) -> str:
    """What a recipe is: the first sentence of what is written above it."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), text(name).splitlines())
    sentence, *_ = re.split(r"(?<=[.?]) ", " ".join(line.removeprefix("#").strip() for line in lines))
    return sentence


def read(name: str | Path) -> Recipe:
    """A recipe by its name, or from a file of one's own, which may build on another with `base: NAME` or a file."""
    return read_file(Path(name), above=()) if is_file_name(name) else parsed(text(str(name)), str(name), str(name))


def is_file_name(name: str | Path) -> bool:
    """Whether a recipe is named by its file."""
    return Path(name).suffix in (".yaml", ".yml")


def read_file(path: Path, above: tuple[Path, ...]) -> Recipe:
    """A user's recipe over the one that it names as its base; `above` are the files that led here."""
    if not path.is_file():
        raise UserError(f"there is no recipe file {path}")
    if path.resolve() in above:
        raise UserError(f"{path} is its own base; one of the files that it builds on names it again")
    try:
        written = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start + 1})") from error
    own = parsed(written, str(path), path.stem)
    base = own.pop("base", None)
    if base is None:
        return own
    if not isinstance(base, str):
        raise UserError(f"{path}: base is the name of a recipe or of a file, not {shown(base)}")
    below = read_file(path.parent / base, (*above, path.resolve())) if is_file_name(base) else read(base)
    flat = {f"{section}.{key}": value for section in SECTIONS for key, value in own.get(section, {}).items()}
    top = {key: value for key, value in own.items() if key not in SECTIONS}
    return override(below | {"recipe": own["recipe"]}, flat) | top


def parsed(written: str, where: str, name: str) -> Recipe:
    """YAML as a mapping of sections, with the recipe's name."""
    recipe = from_yaml(written, where)
    if not isinstance(recipe, dict):
        raise UserError(
            f"{where} is not a recipe: it holds {type(recipe).__name__}, not sections like model and training"
        )
    for key, value in recipe.items():
        if key not in (*SECTIONS, "base", "paper", "task", "recipe"):
            raise UserError(f"{where}: unknown section {key!r}{nearest(str(key), SECTIONS)}")
        if key in SECTIONS and not isinstance(value, dict):
            raise UserError(f"{where}: section {key!r} holds keys with values, not {shown(value)}")
    return {"recipe": name} | recipe


def from_yaml(written: str, where: str) -> Any:
    """What YAML says; `where` is for the error."""
    try:
        return yaml.load(written, Loader)
    except UNREADABLE as error:
        raise UserError(f"{where} is not YAML: {' '.join(str(error).split())}") from error


def override(recipe: Mapping[str, Any], changes: Mapping[str, Any]) -> Recipe:
    """A copy with dotted keys changed: `{"model.size": 256}`.

    A new `model.size` carries `model.embedding` with it, unless that is given too: in a recipe the two are widths of
    one model, and the paper's 620 beside 1000 means nothing beside 64.
    """
    changed = copy.deepcopy(dict(recipe))
    known = {f"{section}.{key}" for section in SECTIONS for key in changed.get(section, {})}
    for key, value in changes.items():
        if key not in known:
            beside = [other for other in known if other.partition(".")[0] == key.partition(".")[0]]
            near = nearest(key, beside, NEAR) if beside else nearest(key, known)
            raise UserError(f"recipe {recipe.get('recipe', '')!r} has no key {key!r}{near}")
        section, name = key.split(".", 1)
        changed[section][name] = value
    if "model.size" in changes and "model.embedding" not in changes and "embedding" in changed["model"]:
        changed["model"]["embedding"] = None
    return changed


def parse_override(argument: str) -> tuple[str, Any]:
    """`model.size=256` -> ("model.size", 256); the value is read as YAML."""
    key, _, value = argument.partition("=")
    try:
        return key.strip(), yaml.load(value, Loader)
    except UNREADABLE:
        return key.strip(), value
