"""`regard plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.errors import UserError


def plot(
    run: Annotated[Path, typer.Argument(help="A run.")],
    sentence: Annotated[str, typer.Argument(help="What to translate.")],
    out: Annotated[Path, typer.Option(help="The picture: .png, .svg, .pdf …")] = Path("attention.png"),
    beam: Annotated[int, typer.Option(min=1, help="Hypotheses that are kept open; 1 is greedy.")] = 5,
) -> None:
    """Translate a sentence and draw where the model looked.

    Example: regard plot runs/demo "The old teacher gives the child a book ." --out picture.png
    """
    from regard.plot import heatmap, save
    from regard.translate import load

    made = load(run).translate([sentence], beam=beam)[0]
    if not made.tokens:
        raise UserError("there is nothing to translate in an empty sentence")
    if made.attention is None:
        raise UserError(f"{run} has no attention to draw")
    save(heatmap(made.attention, made.source_tokens, made.tokens), out)
    typer.echo(made.text)
    typer.echo(str(out))
