"""Recipes: the complete configuration of a run, in YAML. Nothing here needs PyTorch."""

from regard.recipes.recipe import (
    DEFAULT_TASK,
    SECTIONS,
    Recipe,
    describe_recipe,
    get_task_name,
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
    "DEFAULT_TASK",
    "SECTIONS",
    "Recipe",
    "RunConfig",
    "TrainingSettings",
    "describe_recipe",
    "get_task_name",
    "list_recipes",
    "override",
    "parse_override",
    "parse_yaml",
    "read_recipe",
    "read_recipe_text",
    "resolve_auto_sizes",
]
