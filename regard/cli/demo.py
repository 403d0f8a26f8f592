"""`regard demo`: train a small model on synthetic data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.interrupt import print_resume_command_on_interrupt
from regard.errors import UserError, format_suggestion


def demo(
    recipe: Annotated[
        str | None,
        typer.Option(help="Recipe to train; `regard recipes` lists them. Default: one that suits the task."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="Task: translate, tag, classify, read, caption or regress; default: that of the recipe."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: runs/demo or runs/demo-TASK.")] = None,
) -> None:
    """Train a small model on synthetic data in minutes, and show its predictions and attention.

    Example: regard demo --recipe bahdanau2015 --out runs/bahdanau
    """
    from regard.demo import (
        DEFAULT_RECIPES,
        format_prediction_demo,
        format_translation_demo,
        run_prediction_demo,
        run_translation_demo,
    )
    from regard.recipes import read_recipe

    if task is not None and task not in DEFAULT_RECIPES:
        raise UserError(f"unknown task {task!r}{format_suggestion(task, DEFAULT_RECIPES)}")
    recipe_task = read_recipe(recipe).get("task", "translate") if recipe else None
    if recipe_task and task and recipe_task != task:
        raise UserError(f"the recipe {recipe} is for the task {recipe_task}, not {task}")
    task = recipe_task or task or "translate"
    recipe = recipe or DEFAULT_RECIPES[task]
    out = out or Path("runs") / ("demo" if task == "translate" else f"demo-{task}")
    with print_resume_command_on_interrupt(f"regard demo --recipe {recipe} --out {out}"):
        typer.echo(
            format_translation_demo(run_translation_demo(recipe, out), out)
            if task == "translate"
            else format_prediction_demo(run_prediction_demo(recipe, out), out)
        )
