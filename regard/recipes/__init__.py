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

__all__ = [
    "SECTIONS",
    "Recipe",
    "describe_recipe",
    "list_recipes",
    "override",
    "parse_override",
    "parse_yaml",
    "read_recipe",
    "read_recipe_text",
    "resolve_auto_sizes",
]
