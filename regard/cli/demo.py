"""`regard demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.stopping import saying_how_to_go_on


def demo(
    recipe: Annotated[
        str, typer.Option(help="Which model to train; `regard recipes` lists them.")
    ] = "vaswani2017-base",
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/demo"),
) -> None:
    """Train a small translator on the embedded corpus, in minutes, and show what it learnt and where it looked.

    Example: regard demo --recipe bahdanau2015 --out runs/bahdanau
    """
    from regard.demo import run_demo, summary

    with saying_how_to_go_on(f"regard demo --recipe {recipe} --out {out}"):
        typer.echo(summary(run_demo(recipe, out), out))
