"""`regard demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.stopping import saying_how_to_go_on
from regard.errors import UserError, nearest


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
    from regard.demo import RECIPES, answer, run_demo, summary, told
    from regard.recipes import read

    if task is not None and task not in RECIPES:
        raise UserError(f"there is no task {task!r}{nearest(task, RECIPES)}")
    own = read(recipe).get("task", "translate") if recipe else None
    if own and task and own != task:
        raise UserError(f"the recipe {recipe} is of the task {own}, not {task}")
    task = own or task or "translate"
    recipe = recipe or RECIPES[task]
    out = out or Path("runs") / ("demo" if task == "translate" else f"demo-{task}")
    with saying_how_to_go_on(f"regard demo --recipe {recipe} --out {out}"):
        typer.echo(summary(run_demo(recipe, out), out) if task == "translate" else told(answer(recipe, out), out))
