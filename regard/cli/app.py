"""The command line: one thin command per verb. What needs PyTorch is imported where it is used."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from regard.cli.align import align
from regard.cli.data import data
from regard.cli.demo import demo
from regard.cli.evaluate import evaluate
from regard.cli.export import export
from regard.cli.failure import DEBUG, fail, under_torchrun
from regard.cli.keys import keys
from regard.cli.listing import runs
from regard.cli.plot import plot
from regard.cli.predict import predict
from regard.cli.recipes import recipes
from regard.cli.report import report
from regard.cli.reproduce import reproduce
from regard.cli.serve import serve
from regard.cli.synthetic import back_translate, distill
from regard.cli.train import Train, train
from regard.cli.translate import translate
from regard.errors import UserError
from regard.version import VERSION

WRONG_USAGE: Any = typer.BadParameter.__base__  # typer has no name of its own for it

app = typer.Typer(
    name="regard",
    help="Train, look inside and serve attention models on your own text.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command(cls=Train)(train)
app.command()(translate)
app.command()(predict)
app.command()(evaluate)
app.command()(align)
app.command()(plot)
app.command()(recipes)
app.command()(reproduce)
app.command()(runs)
app.command()(report)
app.command()(serve)
app.command()(export)
app.add_typer(keys, name="keys")
data.command("back-translate")(back_translate)
data.command()(distill)
app.add_typer(data, name="data")


def show_version(wanted: bool) -> None:
    """Prints the version and ends."""
    if wanted:
        typer.echo(f"regard {VERSION}")
        raise typer.Exit


@app.callback()
def regard(
    version: bool = typer.Option(False, "--version", callback=show_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(
        False, "--debug", help="Print the traceback behind an error message, with any command; so does REGARD_DEBUG=1."
    ),
) -> None:
    """Train, look inside and serve attention models on your own text."""


def main() -> None:
    """Runs a command; a user's mistake is one sentence and exit code 2."""
    if "--debug" in sys.argv[1:]:  # wherever it is: people add it at the end
        sys.argv.remove("--debug")
        os.environ[DEBUG] = "1"
    try:
        sys.exit(app(standalone_mode=not under_torchrun()))  # alone, a wrong option is shown in a frame, with the usage
    except UserError as error:
        fail(str(error))
    except WRONG_USAGE as error:
        fail(error.format_message())
    except (MemoryError, RuntimeError) as error:
        from regard.tasks.memory import lacks_memory  # imports PyTorch, as what failed did

        if isinstance(error, RuntimeError) and not lacks_memory(error):
            raise
        fail(f"not enough memory: {' '.join(str(error).split())[:200] or 'the allocation failed'}")
    except OSError as error:  # a full disk, a folder that may not be written to, a file where a folder should be
        fail(f"{error.filename or 'the disk'}: {error.strerror or error}")
