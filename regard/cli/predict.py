"""`regard predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.errors import UserError
from regard.strict_json import dumps

INPUTS_PER_CHUNK = 64  # inputs that are predicted together


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
    from regard.cli.stdio import iterate_available_chunks, iterate_chunks, iterate_stdin_lines, restore_default_sigpipe
    from regard.data.readers.text_io import STANDARD_INPUT
    from regard.runs import Run

    if Run(run).read_config().get("task", "translate") == "translate":
        raise UserError(f"{run} translates: regard translate {run} FILE")
    predictor = load(run)
    restore_default_sigpipe()
    if file == STANDARD_INPUT:
        lots = iterate_available_chunks(predictor.parse_lines(iterate_stdin_lines()), INPUTS_PER_CHUNK)
    else:
        lots = iterate_chunks(predictor.read_inputs(file), INPUTS_PER_CHUNK)
    for inputs in lots:
        for made in predictor.predict(inputs):
            typer.echo(dumps(made.to_dict()) if as_json else made.to_text())
