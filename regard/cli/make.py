"""`regard data make`: write the synthetic English–German corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
