"""`regard report`: write the HTML report of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="A run, also one that is still training or was stopped.")],
) -> None:
    """Write a run's HTML report: training curves, samples and heat maps of its best checkpoint so far.

    Example: regard report runs/mine
    """
    from regard.report import write_report
    from regard.runs import Run

    typer.echo(write_report(Run(run)))
