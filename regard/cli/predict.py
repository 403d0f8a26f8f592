"""`regard predict`: apply a model of any task but translation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from regard.cli.stdio import iterate_available_chunks, iterate_chunks, iterate_stdin_lines, restore_default_sigpipe
from regard.data.readers.text import STANDARD_INPUT
from regard.errors import UserError
from regard.paths import format_json
from regard.runs import Run

INPUTS_PER_CHUNK = 64  # inputs that are predicted together


def predict(
    run: Annotated[Path, Argument(help="A run of any task but translation.")],
    file: Annotated[Path, Argument(help="Input file; default: standard input.")] = Path("-"),
    as_json: Annotated[bool, Option("--json", help="Print one JSON object per input, with the attention.")] = False,
) -> None:
    """Print a prediction for each input as it arrives: tags, a label, an answer, a caption or numbers.

    Example: echo "a film that nobody should miss" | regard predict runs/mine --json
    """
    from regard.tasks import get_task

    task = get_task(Run(run).read_config())
    if task.command != "predict":
        raise UserError(f"{run} {task.verb}; use: regard {task.command} {run} FILE")
    predictor = task.load(run)
    restore_default_sigpipe()
    if file == STANDARD_INPUT:
        chunks = iterate_available_chunks(predictor.parse_lines(iterate_stdin_lines()), INPUTS_PER_CHUNK)
    else:
        chunks = iterate_chunks(predictor.read_inputs(file), INPUTS_PER_CHUNK)
    for inputs in chunks:
        for prediction in predictor.predict(inputs):
            typer.echo(format_json(prediction.to_dict()) if as_json else prediction.to_text())
