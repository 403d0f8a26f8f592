"""`regard demo`: train a small model on synthetic data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from regard.cli.train import print_resume_command_on_interrupt
from regard.errors import UserError, format_suggestion
from regard.recipes.recipe import DEFAULT_TASK, get_task_name, read_recipe


def demo(
    recipe: Annotated[
        str | None, Option(help="Recipe to train; `regard recipes` lists them. Default: one that suits the task.")
    ] = None,
    task: Annotated[
        str | None, Option(help="Task, such as translate, tag or classify; default: that of the recipe.")
    ] = None,
    out: Annotated[Path | None, Option(help="Folder of the run; default: runs/demo or runs/demo-TASK.")] = None,
) -> None:
    """Train a small model on synthetic data in minutes, and show its predictions and attention.

    Example: regard demo --recipe bahdanau2015 --out runs/bahdanau
    """
    from regard.demo import run_demo
    from regard.tasks import TASKS

    if task is not None and task not in TASKS:
        raise UserError(f"unknown task {task!r}{format_suggestion(task, TASKS)}")
    recipe_task = get_task_name(read_recipe(recipe)) if recipe else None
    if recipe_task and task and recipe_task != task:
        raise UserError(f"the recipe {recipe} is for the task {recipe_task}, not {task}")
    task = recipe_task or task or DEFAULT_TASK
    recipe = recipe or TASKS[task].demo_recipe
    out = out or Path("runs") / ("demo" if task == DEFAULT_TASK else f"demo-{task}")
    with print_resume_command_on_interrupt(f"regard demo --recipe {recipe} --out {out}"):
        typer.echo(run_demo(recipe, out).text)
