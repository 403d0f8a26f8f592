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
    task: Annotated[str, typer.Option(help="translate, tag, classify, read, caption or regress.")] = "translate",
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/demo or runs/demo-TASK if none.")] = None,
) -> None:
    """Train a small model on embedded data, in minutes, and show what it learnt and where it looked.

    Example: regard demo --recipe bahdanau2015 --out runs/bahdanau
    """
    from regard.demo import RECIPES, answer, run_demo, summary, told
    from regard.recipes import read

    if task not in RECIPES:
        raise UserError(f"there is no task {task!r}{nearest(task, RECIPES)}")
    task = read(recipe).get("task", "translate") if recipe else task
    recipe = recipe or RECIPES[task]
    out = out or Path("runs") / ("demo" if task == "translate" else f"demo-{task}")
    with saying_how_to_go_on(f"regard demo --recipe {recipe} --out {out}"):
        typer.echo(summary(run_demo(recipe, out), out) if task == "translate" else told(answer(recipe, out), out))
