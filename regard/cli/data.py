"""`regard data …`: inspect, clean, download and create corpora."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.clean import clean
from regard.cli.features import features
from regard.cli.get import get
from regard.cli.inspect import inspect

data = typer.Typer(help="Inspect, clean, download and create corpora.", no_args_is_help=True)


@data.callback()
def data_group() -> None:
    """Inspect, clean, download and create corpora."""


data.command()(inspect)
data.command()(clean)
data.command()(get)
data.command()(features)


@data.command()
def make(
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    pairs: Annotated[int, typer.Option(help="Training pairs; dev and test have a tenth, at most 1,000 each.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Random seed of the corpus.")] = 1,
) -> None:
    """Write the synthetic English–German corpus: train, dev and test as .en, .de and .align (gold, Pharaoh).

    Example: regard data make --pairs 20000 --out corpus
    """
    from regard.synthetic.translation import write_translation_corpus

    counts = write_translation_corpus(out, pairs, seed)
    typer.echo(f"{out}: " + ", ".join(f"{name} {count:,} pairs" for name, count in counts.items()))
