"""`regard demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.interrupt import print_resume_command_on_interrupt
from regard.errors import UserError, format_suggestion


def demo(
    recipe: Annotated[
        str | None,
        typer.Option(help="Which model to train; `regard recipes` lists them. Else one that suits the task."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="translate, tag, classify, read, caption or regress; else that of the recipe.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/demo or runs/demo-TASK if none.")] = None,
) -> None:
    """Train a small model on embedded data, in minutes, and show what it learnt and where it looked.

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
        raise UserError(f"there is no task {task!r}{format_suggestion(task, DEFAULT_RECIPES)}")
    own = read_recipe(recipe).get("task", "translate") if recipe else None
    if own and task and own != task:
        raise UserError(f"the recipe {recipe} is of the task {own}, not {task}")
    task = own or task or "translate"
    recipe = recipe or DEFAULT_RECIPES[task]
    out = out or Path("runs") / ("demo" if task == "translate" else f"demo-{task}")
    with print_resume_command_on_interrupt(f"regard demo --recipe {recipe} --out {out}"):
        typer.echo(
            format_translation_demo(run_translation_demo(recipe, out), out)
            if task == "translate"
            else format_prediction_demo(run_prediction_demo(recipe, out), out)
        )
