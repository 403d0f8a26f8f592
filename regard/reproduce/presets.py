"""Recipe keys that fit the papers' recipes to a scale and its corpus, from `presets.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml

from regard.reproduce.experiment import ExperimentRow, TrainingSpec, read_recipe_cached

SCALES = ("small", "full")
PRESETS: dict[str, dict[str, Any]] = yaml.safe_load(
    resources.files("regard.reproduce").joinpath("presets.yaml").read_text(encoding="utf-8")
)


def make_translation_training(recipe: str, corpus: str, changes: Mapping[str, Any] | None = None) -> TrainingSpec:
    """Fit a translation recipe to a corpus; `changes` take precedence."""
    recipe_values = read_recipe_cached(recipe)
    is_transformer = recipe_values["model"]["kind"] == "transformer"
    overrides = {**PRESETS[corpus], **(PRESETS.get(f"{corpus}-transformer", {}) if is_transformer else {})}
    applicable = {
        key: value for key, value in overrides.items() if key.split(".")[1] in recipe_values[key.split(".")[0]]
    }
    return TrainingSpec(recipe, corpus, {**applicable, **(changes or {})})


def make_translation_row(
    name: str, recipe: str, corpus: str, changes: Mapping[str, Any] | None = None, **published: float
) -> ExperimentRow:
    """Return the row of one translation model, with its published values."""
    return ExperimentRow(name, [make_translation_training(recipe, corpus, changes)], {}, published)
