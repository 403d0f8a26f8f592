"""`regard predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.errors import UserError
from regard.strict_json import dumps

AT_ONCE = 64  # inputs that are predicted together


def predict(
    run: Annotated[Path, typer.Argument(help="A run whose model tags, classifies, reads, captions or regresses.")],
    file: Annotated[Path, typer.Argument(help="What to work on; standard input where none is given.")] = Path("-"),
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object for each input, with what the model looked at.")
    ] = False,
) -> None:
    """Tag, classify, read, caption or regress: an answer for each input as it comes.

    Example: echo "a film that nobody should miss" | regard predict runs/mine --json
    """
    from regard.api import load
    from regard.cli.pipe import as_they_come, chunks, end_with_the_pipe, standard_input
    from regard.data.files import STANDARD_INPUT
    from regard.runs import Run

    if Run(run).config().get("task", "translate") == "translate":
        raise UserError(f"{run} translates: regard translate {run} FILE")
    predictor = load(run)
    end_with_the_pipe()
    if file == STANDARD_INPUT:
        lots = as_they_come(predictor.read(standard_input()), AT_ONCE)
    else:
        lots = chunks(predictor.inputs(file), AT_ONCE)
    for inputs in lots:
        for made in predictor.predict(inputs):
            typer.echo(dumps(made.document()) if as_json else made.line())
