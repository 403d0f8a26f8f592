"""Configuration of a run, parsed: the recipe's sections as dataclasses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

from regard.config import Count, Fraction, NonNegativeFloat, NonNegativeInt, Range, parse_settings
from regard.recipes.recipe import DEFAULT_PAIRS, Recipe, override, resolve_auto_sizes

T = TypeVar("T")


@dataclass(frozen=True)
class RunConfig:
    """Config of a run: the recipe, as `config.yaml` has it, and its sections, each parsed when it is first read.

    A value `auto` reads as that for a corpus of `DEFAULT_PAIRS` pairs until `resolve_auto_sizes` replaces it.
    """

    recipe: Recipe
    text_settings: type  # dataclasses of the task
    data_settings: type

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any], text_settings: type, data_settings: type) -> RunConfig:
        """Return the config of a recipe; keys that older versions did not have take their defaults."""
        filled = dict(recipe)
        for section, settings in (("text", text_settings), ("data", data_settings), ("training", TrainingSettings)):
            defaults = {
                key: list(value) if isinstance(value, tuple) else value for key, value in asdict(settings()).items()
            }
            filled[section] = defaults | recipe.get(section, {})
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

    @property
    def model(self) -> dict[str, Any]:
        """The `model` section as a mapping: `regard.models.build` parses it by its `kind`."""
        return dict(self.recipe["model"])

    def _parse(self, cls: type[T], section: str) -> T:
        return parse_settings(cls, resolve_auto_sizes(self.recipe).get(section, {}), section)

    def override(self, changes: Mapping[str, Any]) -> RunConfig:
        """Return the config with dotted keys changed."""
        return replace(self, recipe=override(self.recipe, changes))

    def resolve_auto_sizes(self, pairs: int = DEFAULT_PAIRS) -> RunConfig:
        """Return the config with each `auto` replaced by a value for a corpus of `pairs` pairs."""
        return replace(self, recipe=resolve_auto_sizes(self.recipe, pairs))


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Keys of the `training` section; the comments of each recipe explain them."""

    steps: NonNegativeInt | None = 50_000
    epochs: NonNegativeFloat | None = None
    batch_tokens: Count = 4000
    accumulate: Count = 1
    pool: Count = 100
    curriculum: NonNegativeInt = 0
    optimizer: Literal["adam", "adamw", "sgd", "adadelta"] = "adamw"
    learning_rate: Annotated[float, Range(0, 1e30)] = 0.001
    betas: tuple[float, ...] = (0.9, 0.98)
    epsilon: float = 1e-9
    weight_decay: NonNegativeFloat = 0.0
    schedule: Literal["constant", "inverse-sqrt", "halving", "cosine"] = "inverse-sqrt"
    warmup: NonNegativeInt = 1000
    halve_after: float = 5.0
    halve_every: NonNegativeFloat = 1.0
    clip: float | None = 1.0
    ema: Fraction = 0.0
    average: Count = 1
    validate_every: Count = 1000
    validate_pairs: Count = 500
    best: Literal["score", "loss", "bleu"] = "score"  # bleu: name of the score in the first release
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
        if self.steps is None and self.epochs is None:
            raise ValueError("one of steps and epochs must be given, both are null")
        if self.schedule == "cosine" and self.steps is None:
            raise ValueError("the cosine schedule falls to 0 at the last step, so steps must be given, not null")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be two numbers, each at least 0 and below 1, not {list(self.betas)}")
        if self.epsilon <= 0:
            raise ValueError(f"epsilon must be above 0, not {self.epsilon}")
        for name in ("clip", "patience"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, or null for none, not {getattr(self, name)}")
        if self.epochs == math.inf:
            raise ValueError("epochs must be finite, or null for no limit")
        if self.keep < self.average:
            raise ValueError(f"keep must be at least average: average={self.average}, keep={self.keep}")
        if self.schedule == "halving" and self.halve_every == 0:
            raise ValueError("halve_every must be above 0, it is 0")
