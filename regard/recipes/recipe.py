"""Recipes: the complete configuration of a run in YAML, read with overrides, and parsed into dataclasses."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import yaml

from regard.config import Count, Fraction, NonNegativeFloat, NonNegativeInt, Range, parse_settings
from regard.errors import UserError, format_suggestion, short_repr, to_single_line
from regard.paths import read_package_yaml

RECIPES_FOLDER = Path(__file__).parent
SECTIONS_FOLDER = RECIPES_FOLDER / "_sections"  # parts of recipes, for `base:`
REQUIRED_SECTIONS = ("model", "loss", "text", "data", "training")
SECTIONS = (*REQUIRED_SECTIONS, "evaluation")
MIN_KEY_SIMILARITY = 0.75  # of dotted keys, for a suggestion; high because keys of one section share its name

Recipe = dict[str, Any]
T = TypeVar("T")

_KEY_LINE = re.compile(r"(?P<indent> *)(?P<key>[a-z_]+):(?P<rest>.*)")


class Yaml12Loader(yaml.SafeLoader):
    """YAML loader in which only `true` and `false` are booleans, as in YAML 1.2: `data.target=no` is Norwegian."""


class PackagedYamlLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """`Yaml12Loader` in C, ten times as fast, for files of the package: it crashes on deeply nested text."""


def _construct_int(loader: Any, node: yaml.ScalarNode) -> int:
    """Construct an integer; raise ValueError for one that is too long to be converted back to a string."""
    return int(str(loader.construct_yaml_int(node)))


# Besides its own errors PyYAML raises these, for `!!int ''`, `!!bool x` and the like.
YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError, RecursionError)
BOOL_TAG, INT_TAG = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:int"
for loader in (Yaml12Loader, PackagedYamlLoader):
    loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != BOOL_TAG]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    loader.add_constructor(INT_TAG, _construct_int)
    loader.add_implicit_resolver(BOOL_TAG, re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF"))


def list_recipes() -> list[str]:
    """Return the names of the built-in recipes."""
    return _list_names(RECIPES_FOLDER)


def _list_names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("[!_]*.yaml"))


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
        lines += _format_keys({key: recipe[key]}, comments)
    for section in [section for section in SECTIONS if section in recipe]:
        lines.append("")
        if recipe[section]:
            lines += [f"{section}:", *(f"  {line}" for line in _format_keys(recipe[section], comments, section))]
        else:
            lines += _format_keys({section: {}}, comments)
    return "\n".join([*lines, ""])


def _format_keys(values: Mapping[str, Any], comments: Mapping[tuple[str, str], str], section: str = "") -> list[str]:
    """Return one `key: value  # comment` line per key, with aligned comments."""
    # As an item of a list, so that YAML writes any value on one line.
    lines = {
        key: f"{key}: {yaml.safe_dump([value], default_flow_style=True, width=math.inf, allow_unicode=True)[1:-2]}"
        for key, value in values.items()
    }
    width = max(map(len, lines.values()), default=0)
    notes = {key: f"  # {comments[section, key]}" for key in lines if comments.get((section, key))}
    return [f"{line:<{width}}{notes[key]}" if key in notes else line for key, line in lines.items()]


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
        path, origin, label, loader = folder / name, str(folder / name), Path(name).stem, Yaml12Loader
    else:
        names, kind = list_recipes(), "recipe"
        if chain:
            names, kind = [*names, *_list_names(SECTIONS_FOLDER)], "recipe or section"
        if name not in names:
            raise UserError(f"unknown {kind} {str(name)!r}{format_suggestion(str(name), names)}{reason}")
        path = (RECIPES_FOLDER if name in list_recipes() else SECTIONS_FOLDER) / f"{name}.yaml"
        origin = label = str(name)
        loader = PackagedYamlLoader
    if path.resolve() in chain:
        raise UserError(f"{origin} is its own base{reason}")
    if not path.is_file():
        raise UserError(f"the recipe file {path} does not exist{reason}")
    text = read_yaml_text(path)
    recipe = _parse_recipe(text, origin, label, loader)
    base = recipe.pop("base", None)
    bases = base if isinstance(base, list) else [] if base is None else [base]
    if not all(isinstance(one, str) for one in bases):
        raise UserError(
            f"{origin}: base must be the name of a recipe or of a file, not {short_repr(base)}, or a list of names"
        )
    chain = {**chain, path.resolve(): origin}
    base_files = [file for one in bases for file in _read_files(one, path.parent, chain)]
    return [*base_files, _RecipeFile(origin, text, recipe)]


def _merge_files(files: Sequence[_RecipeFile]) -> Recipe:
    """Apply files to each other in order; raise UserError if the result is not a complete recipe."""
    recipe: Recipe = {}
    for file in files:
        recipe = _apply_file(recipe, file.recipe | {"recipe": files[-1].recipe["recipe"]})
    origin, advice = files[-1].origin, "begin it with the recipe that it changes, such as base: default"
    if missing := [section for section in REQUIRED_SECTIONS if section not in recipe]:
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


def _parse_recipe(yaml_text: str, origin: str, name: str, loader: type[Any]) -> Recipe:
    """Parse YAML and check its sections; add the recipe's name."""
    recipe = parse_yaml(yaml_text, origin, loader)
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


def read_yaml_text(path: Path) -> str:
    """Return the text of a YAML file; raise UserError if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start + 1})") from error


def parse_yaml(yaml_text: str, origin: str, loader: type[Any] = Yaml12Loader) -> Any:
    """Parse YAML; `origin` is for error messages."""
    try:
        return yaml.load(yaml_text, loader)
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


AUTO_SIZES: dict[str, dict[float, Recipe]] = read_package_yaml("regard.recipes", "_auto_sizes.yaml")
DEFAULT_PAIRS = 100_000  # if the size of the corpus is unknown


def resolve_auto_sizes(recipe: Mapping[str, Any], pairs: int = DEFAULT_PAIRS, table: str = "gpu") -> Recipe:
    """Return the recipe with each `auto` replaced by the value of a table for a corpus of `pairs` pairs.

    Unless it is `finetuning`, the table of the recipe's task takes its place, if there is one; `pairs` is then a number
    of characters (`classify`) or of words (`tag`).
    """
    rows = AUTO_SIZES[table] if table == "finetuning" else AUTO_SIZES.get(get_task_name(recipe), AUTO_SIZES[table])
    sizes = next(sizes for max_pairs, sizes in rows.items() if pairs < max_pairs)
    changes: dict[str, Any] = {}
    for section, values in sizes.items():
        is_auto = [name for name in values if recipe.get(section, {}).get(name) == "auto"]
        changes |= {f"{section}.{name}": values[name] for name in is_auto}
    if "embedding" in recipe.get("model", {}):
        changes["model.embedding"] = recipe["model"]["embedding"]  # it stays, though the size changes
    return override(recipe, changes)


@dataclass(frozen=True)
class RunConfig:
    """Config of a run: the recipe, as `config.yaml` has it, and its sections, each parsed when it is first read.

    A value `auto` reads as that for a corpus of `DEFAULT_PAIRS` pairs until `resolve_auto_sizes` replaces it.
    """

    recipe: Recipe
    text_settings: type  # dataclasses of the task
    data_settings: type
    auto_table: str = "gpu"  # of `AUTO_SIZES`

    @classmethod
    def from_recipe(
        cls, recipe: Mapping[str, Any], text_settings: type, data_settings: type, writes_text: bool = False
    ) -> RunConfig:
        """Return the config of a recipe; keys that older versions did not have take their defaults."""
        filled = dict(recipe)
        sections = {"text": text_settings, "data": data_settings, "training": TrainingSettings}
        for section, settings in (sections | ({"evaluation": EvaluationSettings} if writes_text else {})).items():
            defaults = {
                key: list(value) if isinstance(value, tuple) else value for key, value in asdict(settings()).items()
            }
            filled[section] = defaults | recipe.get(section, {})
        if "evaluation" not in recipe and filled["training"]["best"] == "bleu":
            filled["training"]["best"] = "score"  # its name in the first release
        return cls(filled, text_settings, data_settings)

    @cached_property
    def text(self) -> Any:
        """The `text` section."""
        return self._parse(self.text_settings, "text")

    @cached_property
    def data(self) -> Any:
        """The `data` section."""
        return self._parse(self.data_settings, "data")

    @cached_property
    def training(self) -> TrainingSettings:
        """The `training` section."""
        return self._parse(TrainingSettings, "training")

    @cached_property
    def evaluation(self) -> EvaluationSettings:
        """The `evaluation` section."""
        return self._parse(EvaluationSettings, "evaluation")

    @property
    def model(self) -> dict[str, Any]:
        """The `model` section as a mapping: `regard.models.build` parses it by its `kind`."""
        return dict(self.recipe["model"])

    def _parse(self, cls: type[T], section: str) -> T:
        return parse_settings(cls, self.resolve_auto_sizes().recipe.get(section, {}), section)

    def override(self, changes: Mapping[str, Any]) -> RunConfig:
        """Return the config with dotted keys changed."""
        return replace(self, recipe=override(self.recipe, changes))

    def resolve_auto_sizes(self, pairs: int = DEFAULT_PAIRS) -> RunConfig:
        """Return the config with each `auto` replaced by a value for a corpus of `pairs` pairs."""
        return replace(self, recipe=resolve_auto_sizes(self.recipe, pairs, self.auto_table))


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Keys of the `evaluation` section, which recipes of tasks that write text have."""

    tokenize: str = "auto"


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Keys of the `training` section; the comments of each recipe explain them."""

    steps: NonNegativeInt | None = 50_000
    epochs: NonNegativeFloat | None = None
    minutes: NonNegativeFloat | None = None
    batch_tokens: Count = 4000
    accumulate: Count = 1
    pool: Count = 100
    curriculum: NonNegativeInt = 0
    optimizer: Literal["adam", "adamw", "sgd", "adadelta"] = "adamw"
    learning_rate: Annotated[float, Range(0, 1e30)] = 0.001
    betas: tuple[float, ...] = (0.9, 0.98)
    epsilon: float = 1e-9
    weight_decay: NonNegativeFloat = 0.0
    schedule: Literal["constant", "inverse-sqrt", "halving", "cosine", "linear"] = "inverse-sqrt"
    warmup: NonNegativeInt = 1000
    halve_after: float = 5.0
    halve_every: NonNegativeFloat = 1.0
    clip: float | None = 1.0
    ema: Fraction = 0.0
    average: Count = 1
    validate_every: Count | None = 1000
    validate_pairs: Count = 500
    best: Literal["score", "loss", "bleu", "chrf"] = "score"
    patience: int | None = 10
    bad_updates: Count = 20
    checkpoint_every: Count = 1000
    keep: Count = 2
    keep_best: Count = 1
    log_every: Count = 50
    tensorboard: bool = True
    precision: Literal["auto", "mixed", "bf16", "fp16", "fp32"] = "auto"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: Count | None = None
    shard: bool = False
    seed: Annotated[int, Range(0, below=1 << 63)] = 1
    init_from: str | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.epochs is None and self.minutes is None:
            raise ValueError("one of steps, epochs and minutes must be given, all are null")
        if self.schedule == "cosine" and self.steps is None:
            raise ValueError("the cosine schedule falls to 0 at the last step, so steps must be given, not null")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be two numbers, each at least 0 and below 1, not {list(self.betas)}")
        if self.epsilon <= 0:
            raise ValueError(f"epsilon must be above 0, not {self.epsilon}")
        for name in ("clip", "patience", "minutes"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, or null for none, not {getattr(self, name)}")
        for name in ("epochs", "minutes"):
            if getattr(self, name) == math.inf:
                raise ValueError(f"{name} must be finite, or null for no limit")
        if self.keep < self.average:
            raise ValueError(f"keep must be at least average: average={self.average}, keep={self.keep}")
        if self.schedule == "halving" and self.halve_every == 0:
            raise ValueError("halve_every must be above 0, it is 0")
