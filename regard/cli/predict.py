"""`regard predict`: tag, classify, read, caption or regress inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.errors import UserError
from regard.strict_json import dumps

INPUTS_PER_CHUNK = 64  # inputs that are predicted together


def predict(
    run: Annotated[Path, typer.Argument(help="A run whose model tags, classifies, reads, captions or regresses.")],
    file: Annotated[Path, typer.Argument(help="Input file; default: standard input.")] = Path("-"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per input, with the attention.")
    ] = False,
) -> None:
    """Tag, classify, read, caption or regress: print a prediction for each input as it arrives.

    Example: echo "a film that nobody should miss" | regard predict runs/mine --json
    """
    from regard.api import load
    from regard.cli.stdio import iterate_available_chunks, iterate_chunks, iterate_stdin_lines, restore_default_sigpipe
    from regard.data.readers.text import STANDARD_INPUT
    from regard.runs import Run

    if Run(run).read_config().get("task", "translate") == "translate":
        raise UserError(f"{run} translates; use: regard translate {run} FILE")
    predictor = load(run)
    restore_default_sigpipe()
    if file == STANDARD_INPUT:
        chunks = iterate_available_chunks(predictor.parse_lines(iterate_stdin_lines()), INPUTS_PER_CHUNK)
    else:
        chunks = iterate_chunks(predictor.read_inputs(file), INPUTS_PER_CHUNK)
    for inputs in chunks:
        for prediction in predictor.predict(inputs):
            typer.echo(dumps(prediction.to_dict()) if as_json else prediction.to_text())
