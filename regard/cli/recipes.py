"""`regard recipes`: list and print recipes."""

from __future__ import annotations

from typing import Annotated

import typer


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="Print this recipe, or YAML file, with a comment on every key.")
    ] = None,
) -> None:
    """List the recipes, or print one.

    Example: regard recipes luong2015-global > mine.yaml
    """
    from regard.recipes import describe_recipe, list_recipes, read_recipe_text

    if name is not None:
        typer.echo(read_recipe_text(name), nl=False)
        return
    width = max(map(len, list_recipes()))
    for recipe in list_recipes():
        typer.echo(f"{recipe:<{width}}  {describe_recipe(recipe)}")
