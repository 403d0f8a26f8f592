"""Recipes: YAML files with everything that makes a model, and the keys that a user changes in them."""

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
MIN_KEY_SIMILARITY = (
    0.75  # how much of a dotted key another has where one is taken for the other; its section is most of it
)

Recipe = dict[str, Any]


class Yaml12Loader(yaml.SafeLoader):
    """YAML in which only `true` and `false` are truth values, as in YAML 1.2: `data.target=no` is Norwegian."""


def _construct_int(loader: Yaml12Loader, node: yaml.ScalarNode) -> int:
    """A whole number that can be written down again; of thousands of hexadecimal digits Python can make none."""
    return int(str(loader.construct_yaml_int(node)))


# Beside its own errors PyYAML lets these through, of `!!int ''`, `!!bool x` and the like.
YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError, RecursionError)
BOOL_TAG, INT_TAG = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:int"
Yaml12Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != BOOL_TAG]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Yaml12Loader.add_constructor(INT_TAG, _construct_int)
Yaml12Loader.add_implicit_resolver(BOOL_TAG, re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF"))


def list_recipes() -> list[str]:
    """The recipes that come with regard."""
    return sorted(path.stem for path in RECIPES_FOLDER.glob("*.yaml"))


def read_recipe_text(name: str) -> str:
    """A recipe as it is written, comments and all."""
    path = RECIPES_FOLDER / f"{name}.yaml"
    if name not in list_recipes():
        raise UserError(f"there is no recipe {name!r}{format_suggestion(name, list_recipes())}")
    return path.read_text(encoding="utf-8")


def describe_recipe(name: str) -> str:
    """What a recipe is: the first sentence of what is written above it."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), read_recipe_text(name).splitlines())
    sentence, *_ = re.split(r"(?<=[.?]) ", " ".join(line.removeprefix("#").strip() for line in lines))
    return sentence


def read_recipe(name: str | Path) -> Recipe:
    """A recipe by its name, or from a file of one's own, which may build on another with `base: NAME` or a file."""
    return (
        _read_recipe_file(Path(name), including_files=())
        if _is_recipe_file(name)
        else _parse_recipe(read_recipe_text(str(name)), str(name), str(name))
    )


def _is_recipe_file(name: str | Path) -> bool:
    """Whether a recipe is named by its file."""
    return Path(name).suffix in (".yaml", ".yml")


def _read_recipe_file(path: Path, including_files: tuple[Path, ...]) -> Recipe:
    """A user's recipe over the one that it names as its base; `above` are the files that led here."""
    if not path.is_file():
        raise UserError(f"there is no recipe file {path}")
    if path.resolve() in including_files:
        raise UserError(f"{path} is its own base; one of the files that it builds on names it again")
    try:
        written = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start + 1})") from error
    own = _parse_recipe(written, str(path), path.stem)
    base = own.pop("base", None)
    if base is None:
        missing = [section for section in SECTIONS if section not in own]
        if missing:
            raise UserError(
                f"{path} has no section {' or '.join(missing)}; begin it with the recipe that it changes, such as "
                "base: default"
            )
        if "kind" not in own["model"]:
            raise UserError(
                f"{path} has no model.kind; begin it with the recipe that it changes, such as base: default"
            )
        return own
    if not isinstance(base, str):
        raise UserError(f"{path}: base is the name of a recipe or of a file, not {short_repr(base)}")
    below = (
        _read_recipe_file(path.parent / base, (*including_files, path.resolve()))
        if _is_recipe_file(base)
        else read_recipe(base)
    )
    flat = {f"{section}.{key}": value for section in SECTIONS for key, value in own.get(section, {}).items()}
    top = {key: value for key, value in own.items() if key not in SECTIONS}
    return override(below | {"recipe": own["recipe"]}, flat) | top


def _parse_recipe(yaml_text: str, origin: str, name: str) -> Recipe:
    """YAML as a mapping of sections, with the recipe's name."""
    recipe = parse_yaml(yaml_text, origin)
    if not isinstance(recipe, dict):
        raise UserError(
            f"{origin} is not a recipe: it holds {type(recipe).__name__}, not sections like model and training"
        )
    for key, value in recipe.items():
        if key not in (*SECTIONS, "base", "paper", "task", "recipe"):
            raise UserError(f"{origin}: unknown section {key!r}{format_suggestion(str(key), SECTIONS)}")
        if key in SECTIONS and not isinstance(value, dict):
            raise UserError(f"{origin}: section {key!r} holds keys with values, not {short_repr(value)}")
    return {"recipe": name} | recipe


def parse_yaml(yaml_text: str, origin: str) -> Any:
    """What YAML says; `where` is for the error."""
    try:
        return yaml.load(yaml_text, Yaml12Loader)
    except YAML_ERRORS as error:
        raise UserError(f"{origin} is not YAML: {' '.join(str(error).split())}") from error


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
            near = format_suggestion(key, beside, MIN_KEY_SIMILARITY) if beside else format_suggestion(key, known)
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
        return key.strip(), yaml.load(value, Yaml12Loader)
    except YAML_ERRORS:
        return key.strip(), value


class AutoSizes(NamedTuple):
    """What suits corpora below a number of pairs."""

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
}  # the others belong to `model`
DEFAULT_PAIRS = 100_000  # pairs, where nobody has said


def resolve_auto_sizes(recipe: Mapping[str, Any], pairs: int = DEFAULT_PAIRS) -> Recipe:
    """The recipe with each `auto` replaced by what suits a corpus of so many pairs, and nothing else changed."""
    row = next(row for row in AUTO_SIZES if pairs < row.max_pairs)
    wanted = {
        f"{AUTO_KEY_SECTIONS.get(name, 'model')}.{name}": value
        for name, value in row._asdict().items()
        if name != "max_pairs"
    }
    auto = {key: value for key, value in wanted.items() if _is_auto(recipe, key)}
    kept = {f"model.{name}": value for name, value in recipe.get("model", {}).items() if name == "embedding"}
    return override(recipe, kept | auto)


def _is_auto(recipe: Mapping[str, Any], key: str) -> bool:
    """Whether a key of the recipe is `auto`."""
    section, name = key.split(".")
    return bool(recipe.get(section, {}).get(name) == "auto")
