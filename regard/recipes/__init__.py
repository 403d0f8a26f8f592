"""Recipes: the complete configuration of a run, in YAML. Nothing here needs PyTorch."""

from regard.recipes.recipe import (
    SECTIONS,
    Recipe,
    describe_recipe,
    list_recipes,
    override,
    parse_override,
    parse_yaml,
    read_recipe,
    read_recipe_text,
    resolve_auto_sizes,
)
from regard.recipes.run_config import RunConfig, TrainingSettings

__all__ = [
    "SECTIONS",
    "Recipe",
    "RunConfig",
    "TrainingSettings",
    "describe_recipe",
    "list_recipes",
    "override",
    "parse_override",
    "parse_yaml",
    "read_recipe",
    "read_recipe_text",
    "resolve_auto_sizes",
]
