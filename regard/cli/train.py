"""`regard train`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from regard.cli.stopping import saying_how_to_go_on
from regard.data.corpus import holds_pairs
from regard.errors import UserError

OVERRIDE = re.compile(r"[A-Za-z_.]+ ?=.*", re.DOTALL)


class Train(TyperCommand):
    """Takes `--dev` with one file that holds pairs or with two text files behind it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Gives each file of `--dev` its own `--dev`, as the parser wants it."""
        return super().parse_args(ctx, spread(args))


def spread(args: list[str]) -> list[str]:
    """`--dev a.en a.de` -> `--dev a.en --dev a.de`; a file that holds pairs stands alone."""
    out: list[str] = []
    for number, argument in enumerate(args):
        first = number > 0 and args[number - 1] == "--dev" and not holds_pairs(Path(argument))
        out.append(argument)
        if (
            first
            and number + 1 < len(args)
            and not args[number + 1].startswith("-")
            and not is_override(args[number + 1])
        ):
            out.append("--dev")
    return out


def is_override(argument: str) -> bool:
    """`model.size=256` is one, a file of such a name is not."""
    return OVERRIDE.fullmatch(argument) is not None and not Path(argument).exists()


def train(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            help="One file that holds pairs (.tsv, .jsonl) or two text files, source first; then key=value …"
        ),
    ] = None,
    dev: Annotated[list[Path] | None, typer.Option(help="Files to validate on, like DATA.", metavar="DATA…")] = None,
    recipe: Annotated[str, typer.Option(help="A recipe's name, or a YAML file.")] = "default",
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/DATA-RECIPE where none is given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
) -> None:
    """Train a model on your own text.

    Example: regard train de-en.tsv --recipe bahdanau2015 --out runs/mine model.size=256 training.steps=20000
    """
    from regard.api import train as run_training
    from regard.console import say
    from regard.recipes import parse_override

    given = data or []
    overrides = dict(parse_override(argument) for argument in given if is_override(argument))
    files = [argument for argument in given if not is_override(argument)]
    if out is None:
        if resume:
            raise UserError("--resume needs --out: which run is to go on?")
        if not files:
            raise UserError("nothing to train on: name one file that holds pairs, or two text files, source first")
        out = Path("runs") / f"{Path(files[0]).name.split('.')[0]}-{Path(recipe).stem}"
    with saying_how_to_go_on(f"regard train --resume --out {out}"):
        run = run_training(recipe, files or None, out, dev=dev or None, resume=resume, **overrides)
    best, report = run.best(), run.folder / "report.html"
    say(f"the best model is that of step {best}; curves, samples and heat maps: {report}")
    say(f"translate with: regard translate {run.folder} FILE")
