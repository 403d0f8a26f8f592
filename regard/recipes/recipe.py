"""Read recipes (YAML configurations of models and training) and apply overrides."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from regard.errors import UserError, format_suggestion, short_repr

RECIPES_FOLDER = Path(__file__).parent
SECTIONS = ("model", "loss", "text", "data", "training")
MIN_KEY_SIMILARITY = 0.75  # of dotted keys, for a suggestion; high because keys of one section share its name

Recipe = dict[str, Any]


class Yaml12Loader(yaml.SafeLoader):
    """YAML loader in which only `true` and `false` are booleans, as in YAML 1.2: `data.target=no` is Norwegian."""


def _construct_int(loader: Yaml12Loader, node: yaml.ScalarNode) -> int:
    """Construct an integer; raise ValueError for one that is too long to be converted back to a string."""
    return int(str(loader.construct_yaml_int(node)))


# Besides its own errors PyYAML raises these, for `!!int ''`, `!!bool x` and the like.
YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError, RecursionError)
BOOL_TAG, INT_TAG = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:int"
Yaml12Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != BOOL_TAG]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Yaml12Loader.add_constructor(INT_TAG, _construct_int)
Yaml12Loader.add_implicit_resolver(BOOL_TAG, re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF"))


def list_recipes() -> list[str]:
    """Return the names of the built-in recipes."""
    return sorted(path.stem for path in RECIPES_FOLDER.glob("*.yaml"))


def read_recipe_text(name: str) -> str:
    """Return the text of a built-in recipe, with its comments."""
    path = RECIPES_FOLDER / f"{name}.yaml"
    if name not in list_recipes():
        raise UserError(f"unknown recipe {name!r}{format_suggestion(name, list_recipes())}")
    return path.read_text(encoding="utf-8")


def describe_recipe(name: str) -> str:
    """Return the description of a recipe: the first sentence of its header comment."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), read_recipe_text(name).splitlines())
    sentence, *_ = re.split(r"(?<=[.?]) ", " ".join(line.removeprefix("#").strip() for line in lines))
    return sentence


def read_recipe(name: str | Path) -> Recipe:
    """Read a built-in recipe by name, or a user's file, which may build on another with `base: NAME` or a file."""
    return (
        _read_recipe_file(Path(name), including_files=())
        if _is_recipe_file(name)
        else _parse_recipe(read_recipe_text(str(name)), str(name), str(name))
    )


def _is_recipe_file(name: str | Path) -> bool:
    return Path(name).suffix in (".yaml", ".yml")


def _read_recipe_file(path: Path, including_files: tuple[Path, ...]) -> Recipe:
    """Read a user's recipe and apply it to its base; `including_files` detects circular bases."""
    if not path.is_file():
        raise UserError(f"the recipe file {path} does not exist")
    if path.resolve() in including_files:
        raise UserError(f"{path} is its own base: one of the files that it builds on refers to it again")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start + 1})") from error
    recipe = _parse_recipe(text, str(path), path.stem)
    base = recipe.pop("base", None)
    if base is None:
        missing = [section for section in SECTIONS if section not in recipe]
        if missing:
            raise UserError(
                f"{path} has no section {' or '.join(missing)}; begin it with the recipe that it changes, such as "
                "base: default"
            )
        if "kind" not in recipe["model"]:
            raise UserError(
                f"{path} has no model.kind; begin it with the recipe that it changes, such as base: default"
            )
        return recipe
    if not isinstance(base, str):
        raise UserError(f"{path}: base must be the name of a recipe or of a file, not {short_repr(base)}")
    base_recipe = (
        _read_recipe_file(path.parent / base, (*including_files, path.resolve()))
        if _is_recipe_file(base)
        else read_recipe(base)
    )
    changes = {f"{section}.{key}": value for section in SECTIONS for key, value in recipe.get(section, {}).items()}
    other_keys = {key: value for key, value in recipe.items() if key not in SECTIONS}
    return override(base_recipe | {"recipe": recipe["recipe"]}, changes) | other_keys


def _parse_recipe(yaml_text: str, origin: str, name: str) -> Recipe:
    """Parse YAML and check its sections; add the recipe's name."""
    recipe = parse_yaml(yaml_text, origin)
    if not isinstance(recipe, dict):
        raise UserError(
            f"{origin} is not a recipe: it contains {type(recipe).__name__}, not sections like model and training"
        )
    for key, value in recipe.items():
        if key not in (*SECTIONS, "base", "paper", "task", "recipe"):
            raise UserError(f"{origin}: unknown section {key!r}{format_suggestion(str(key), SECTIONS)}")
        if key in SECTIONS and not isinstance(value, dict):
            raise UserError(f"{origin}: section {key!r} must contain keys with values, not {short_repr(value)}")
    return {"recipe": name} | recipe


def parse_yaml(yaml_text: str, origin: str) -> Any:
    """Parse YAML; `origin` is for error messages."""
    try:
        return yaml.load(yaml_text, Yaml12Loader)
    except YAML_ERRORS as error:
        raise UserError(f"{origin} is not YAML: {' '.join(str(error).split())}") from error


def override(recipe: Mapping[str, Any], changes: Mapping[str, Any]) -> Recipe:
    """Return a copy with dotted keys changed: `{"model.size": 256}`.

    A new `model.size` resets `model.embedding`, unless that is changed too: the paper's embedding size belongs to its
    hidden size (620 to 1000) and does not fit another one.
    """
    changed = copy.deepcopy(dict(recipe))
    known = {f"{section}.{key}" for section in SECTIONS for key in changed.get(section, {})}
    for key, value in changes.items():
        if key not in known:
            in_section = [other for other in known if other.partition(".")[0] == key.partition(".")[0]]
            suggestion = (
                format_suggestion(key, in_section, MIN_KEY_SIMILARITY) if in_section else format_suggestion(key, known)
            )
            raise UserError(f"recipe {recipe.get('recipe', '')!r} has no key {key!r}{suggestion}")
        section, name = key.split(".", 1)
        changed[section][name] = value
    if "model.size" in changes and "model.embedding" not in changes and "embedding" in changed["model"]:
        changed["model"]["embedding"] = None
    return changed


def parse_override(argument: str) -> tuple[str, Any]:
    """Parse `model.size=256` to `("model.size", 256)`; the value is YAML."""
    key, _, value = argument.partition("=")
    try:
        return key.strip(), yaml.load(value, Yaml12Loader)
    except YAML_ERRORS:
        return key.strip(), value


class AutoSizes(NamedTuple):
    """Values for corpora with fewer than `max_pairs` pairs."""

    max_pairs: float
    size: int
    layers: int
    heads: int
    dropout: float
    vocabulary: int
    batch_tokens: int
    learning_rate: float


AUTO_SIZES = (
    AutoSizes(10_000, 128, 3, 4, 0.3, 2_000, 3_000, 0.002),
    AutoSizes(50_000, 256, 4, 4, 0.3, 6_000, 9_000, 0.002),
    AutoSizes(200_000, 256, 5, 4, 0.3, 10_000, 9_000, 0.0015),
    AutoSizes(1_000_000, 512, 6, 8, 0.2, 16_000, 12_000, 0.001),
    AutoSizes(float("inf"), 512, 6, 8, 0.1, 32_000, 16_000, 0.001),
)
AUTO_KEY_SECTIONS = {
    "vocabulary": "text",
    "batch_tokens": "training",
    "learning_rate": "training",
}  # the other fields of AutoSizes are in `model`
DEFAULT_PAIRS = 100_000  # if the size of the corpus is unknown


def resolve_auto_sizes(recipe: Mapping[str, Any], pairs: int = DEFAULT_PAIRS) -> Recipe:
    """Return the recipe with each `auto` replaced by a value for a corpus of `pairs` pairs."""
    row = next(row for row in AUTO_SIZES if pairs < row.max_pairs)
    values = {
        f"{AUTO_KEY_SECTIONS.get(name, 'model')}.{name}": value
        for name, value in row._asdict().items()
        if name != "max_pairs"
    }
    auto_values = {key: value for key, value in values.items() if _is_auto(recipe, key)}
    embedding = {f"model.{name}": value for name, value in recipe.get("model", {}).items() if name == "embedding"}
    return override(recipe, embedding | auto_values)


def _is_auto(recipe: Mapping[str, Any], key: str) -> bool:
    section, name = key.split(".")
    return bool(recipe.get(section, {}).get(name) == "auto")
