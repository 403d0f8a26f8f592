"""Read recipes (YAML configurations of models and training) and apply overrides."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from regard.errors import UserError, format_suggestion, short_repr, to_single_line

RECIPES_FOLDER = Path(__file__).parent
SECTIONS_FOLDER = RECIPES_FOLDER / "_sections"  # parts of recipes, for `base:`
SECTIONS = ("model", "loss", "text", "data", "training")
MIN_KEY_SIMILARITY = 0.75  # of dotted keys, for a suggestion; high because keys of one section share its name

Recipe = dict[str, Any]

_KEY_LINE = re.compile(r"(?P<indent> *)(?P<key>[a-z_]+):(?P<rest>.*)")


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
    return _list_names(RECIPES_FOLDER)


def _list_names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml"))


def describe_recipe(name: str) -> str:
    """Return the description of a recipe: the first sentence of its header comment."""
    header = _read_files(name)[-1].list_header_lines()
    sentence, *_ = re.split(r"(?<=[.?]) ", " ".join(line.removeprefix("#").strip() for line in header))
    return sentence


DEFAULT_TASK = "translate"  # of configs without one, as the first release wrote them


def get_task_name(recipe: Mapping[str, Any]) -> str:
    """Return the name of the task of a recipe or of a run's config."""
    return str(recipe.get("task", DEFAULT_TASK))


def read_recipe(name: str | Path) -> Recipe:
    """Read a built-in recipe by name, or a user's file.

    A recipe may build on others: `base:` is a built-in recipe, a built-in section (`_sections/*.yaml`), a file, whose
    path is relative to the recipe's, or a list of them. Each one changes those before it; the recipe changes them all.
    """
    return _merge_files(_read_files(name))


def read_recipe_text(name: str | Path) -> str:
    """Return a recipe as YAML, merged with all that it builds on, with a comment on each key.

    A key has the comment of the last file that comments on it.
    """
    files = _read_files(name)
    recipe = _merge_files(files)
    comments = {key: comment for file in files for key, comment in file.iterate_comments()}
    lines = files[-1].list_header_lines()
    for key in [key for key in recipe if key not in (*SECTIONS, "recipe")]:
        lines += _format_keys({key: recipe[key]}, {key: comments.get(("", key), "")})
    for section in SECTIONS:
        values = _format_keys(recipe[section], {key: comments.get((section, key), "") for key in recipe[section]})
        empty = _format_keys({section: {}}, {section: comments.get(("", section), "")})
        lines += ["", *([f"{section}:", *(f"  {line}" for line in values)] if values else empty)]
    return "\n".join([*lines, ""])


def _format_keys(values: Mapping[str, Any], comments: Mapping[str, str]) -> list[str]:
    """Return one `key: value  # comment` line per key, with aligned comments."""
    # As an item of a list, so that YAML writes any value on one line.
    dumped = {
        key: yaml.safe_dump([value], default_flow_style=True, width=math.inf, allow_unicode=True)[1:-2]
        for key, value in values.items()
    }
    width = max((len(f"{key}: {text}") for key, text in dumped.items()), default=0)
    return [
        f"{f'{key}: {text}':<{width}}  # {comments[key]}" if comments[key] else f"{key}: {text}"
        for key, text in dumped.items()
    ]


class _RecipeFile(NamedTuple):
    """A recipe, or a section of recipes: its origin for messages, its text, and its content without `base`."""

    origin: str
    text: str
    recipe: Recipe

    def list_header_lines(self) -> list[str]:
        """Return the comment at the top, which describes the recipe."""
        return list(itertools.takewhile(lambda line: line.startswith("#"), self.text.splitlines()))

    def iterate_comments(self) -> Iterator[tuple[tuple[str, str], str]]:
        """Yield ((section, key), comment); the section of a key at the left margin is empty."""
        section = ""
        for line in self.text.splitlines():
            if match := _KEY_LINE.fullmatch(line):
                section = section if match["indent"] else match["key"]
                if comment := match["rest"].partition(" # ")[2]:
                    yield (section if match["indent"] else "", match["key"]), comment


def _read_files(name: str | Path, folder: Path = Path(), chain: Mapping[Path, str] | None = None) -> list[_RecipeFile]:
    """Read the files that a recipe builds on, and then the recipe.

    Args:
        name: Name or file.
        folder: Folder that a file's path is relative to.
        chain: Files that lead to this one by their `base`, with their names in messages.
    """
    chain = chain or {}
    reason = f" ({' → '.join([*chain.values(), str(name)])})" if chain else ""
    if Path(name).suffix in (".yaml", ".yml"):
        path, origin, label = folder / name, str(folder / name), Path(name).stem
    else:
        names, kind = list_recipes(), "recipe"
        if chain:
            names, kind = [*names, *_list_names(SECTIONS_FOLDER)], "recipe or section"
        if name not in names:
            raise UserError(f"unknown {kind} {str(name)!r}{format_suggestion(str(name), names)}{reason}")
        path = (RECIPES_FOLDER if name in list_recipes() else SECTIONS_FOLDER) / f"{name}.yaml"
        origin = label = str(name)
    if path.resolve() in chain:
        raise UserError(f"{origin} is its own base{reason}")
    if not path.is_file():
        raise UserError(f"the recipe file {path} does not exist{reason}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start + 1})") from error
    recipe = _parse_recipe(text, origin, label)
    base = recipe.pop("base", None)
    bases = base if isinstance(base, list) else [] if base is None else [base]
    if not all(isinstance(one, str) for one in bases):
        raise UserError(
            f"{origin}: base must be the name of a recipe or of a file, not {short_repr(base)}, or a list of names"
        )
    chain = {**chain, path.resolve(): origin}
    return [
        *(file for one in bases for file in _read_files(one, path.parent, chain)),
        _RecipeFile(origin, text, recipe),
    ]


def _merge_files(files: Sequence[_RecipeFile]) -> Recipe:
    """Apply files to each other in order; raise UserError if the result is not a complete recipe."""
    recipe: Recipe = {}
    for file in files:
        recipe = _apply_file(recipe, file.recipe | {"recipe": files[-1].recipe["recipe"]})
    origin, advice = files[-1].origin, "begin it with the recipe that it changes, such as base: default"
    if missing := [section for section in SECTIONS if section not in recipe]:
        raise UserError(f"{origin} has no section {' or '.join(missing)}; {advice}")
    if recipe["model"].get("kind") is None:
        raise UserError(f"{origin} has no model.kind; {advice}")
    return {key: recipe[key] for key in ("recipe", "paper", "task", *SECTIONS) if key in recipe}


def _apply_file(recipe: Recipe, changes: Recipe) -> Recipe:
    """Return the recipe with the values of a file.

    Keys that the recipe does not have are errors, except while it has no `model.kind`, and for another `model.kind`,
    whose keys in `model` may differ.
    """
    kind = recipe.get("model", {}).get("kind")
    has_new_kind = changes.get("model", {}).get("kind", kind) != kind
    changed = {key: value for key, value in changes.items() if key not in SECTIONS}
    for section in SECTIONS:
        if section in changes and (kind is None or (has_new_kind and section == "model")):
            changed[section] = {**recipe.get(section, {}), **changes[section]}
    values = {f"{name}.{key}": value for name in SECTIONS for key, value in changes.get(name, {}).items()}
    return override(recipe | changed, values)


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
        raise UserError(f"{origin} is not YAML: {to_single_line(error)}") from error


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


AUTO_KEYS = (
    "model.size",
    "model.layers",
    "model.heads",
    "model.dropout",
    "text.vocabulary",
    "training.batch_tokens",
    "training.learning_rate",
)
AUTO_SIZES: dict[float, tuple[float, ...]] = {  # number of pairs -> values of `AUTO_KEYS` for corpora with fewer
    10_000: (128, 3, 4, 0.3, 2_000, 3_000, 0.002),
    50_000: (256, 4, 4, 0.3, 6_000, 9_000, 0.002),
    200_000: (256, 5, 4, 0.3, 10_000, 9_000, 0.0015),
    1_000_000: (512, 6, 8, 0.2, 16_000, 12_000, 0.001),
    math.inf: (512, 6, 8, 0.1, 32_000, 16_000, 0.001),
}
DEFAULT_PAIRS = 100_000  # if the size of the corpus is unknown


def resolve_auto_sizes(recipe: Mapping[str, Any], pairs: int = DEFAULT_PAIRS) -> Recipe:
    """Return the recipe with each `auto` replaced by a value for a corpus of `pairs` pairs."""
    values = next(values for max_pairs, values in AUTO_SIZES.items() if pairs < max_pairs)
    changes: dict[str, Any] = {}
    for key, value in zip(AUTO_KEYS, values, strict=True):
        section, name = key.split(".")
        if recipe.get(section, {}).get(name) == "auto":
            changes[key] = value
    if "embedding" in recipe.get("model", {}):
        changes["model.embedding"] = recipe["model"]["embedding"]  # it stays, though the size changes
    return override(recipe, changes)
