"""Recipes: everything that makes a run, in YAML. Nothing here needs PyTorch."""

from regard.recipes.recipe import SECTIONS, Recipe, about, from_yaml, names, override, parse_override, read, text
from regard.recipes.sizes import sized

__all__ = ["SECTIONS", "Recipe", "about", "from_yaml", "names", "override", "parse_override", "read", "sized", "text"]
