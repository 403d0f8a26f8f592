"""The command line: one thin command per verb. What needs PyTorch is imported where it is used."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import typer

from regard.cli.align import align
from regard.cli.data import data
from regard.cli.demo import demo
from regard.cli.evaluate import evaluate
from regard.cli.export import export
from regard.cli.keys import keys
from regard.cli.plot import plot
from regard.cli.predict import predict
from regard.cli.recipes import recipes
from regard.cli.report import report
from regard.cli.reproduce import reproduce
from regard.cli.runs import runs
from regard.cli.serve import serve
from regard.cli.synthetic_data import back_translate, distill
from regard.cli.train import TrainCommand, train
from regard.cli.translate import translate
from regard.console import is_rank0
from regard.errors import UserError
from regard.version import VERSION

USAGE_ERROR: Any = typer.BadParameter.__base__  # typer has no name of its own for it

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
app.command(cls=TrainCommand)(train)
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


def _print_version(wanted: bool) -> None:
    """Prints the version and ends."""
    if wanted:
        typer.echo(f"regard {VERSION}")
        raise typer.Exit


@app.callback()
def regard(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(
        False, "--debug", help="Print the traceback behind an error message, with any command; so does REGARD_DEBUG=1."
    ),
) -> None:
    """Train, look inside and serve attention models on your own text."""


def main() -> None:
    """Runs a command; a user's mistake is one sentence and exit code 2."""
    if "--debug" in sys.argv[1:]:  # wherever it is: people add it at the end
        sys.argv.remove("--debug")
        os.environ[DEBUG_VARIABLE] = "1"
    try:
        sys.exit(
            app(standalone_mode=not is_under_torchrun())
        )  # alone, a wrong option is shown in a frame, with the usage
    except UserError as error:
        exit_with_error(str(error))
    except USAGE_ERROR as error:
        exit_with_error(error.format_message())
    except (MemoryError, RuntimeError) as error:
        from regard.tasks.base import is_out_of_memory  # imports PyTorch, as what failed did

        if isinstance(error, RuntimeError) and not is_out_of_memory(error):
            raise
        exit_with_error(f"not enough memory: {' '.join(str(error).split())[:200] or 'the allocation failed'}")
    except OSError as error:  # a full disk, a folder that may not be written to, a file where a folder should be
        exit_with_error(f"{error.filename or 'the disk'}: {error.strerror or error}")


DEBUG_VARIABLE = "REGARD_DEBUG"  # the environment variable behind --debug
TORCHRUN_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # where torchrun looks for what a process of its own died of


def is_under_torchrun() -> bool:
    """Whether torchrun has started this process, alone or with others."""
    return TORCHRUN_ERROR_FILE in os.environ


def exit_with_error(message: str) -> NoReturn:
    """Ends with 2 and one sentence; of several processes one speaks, and torchrun's report has it as the cause.

    With --debug (REGARD_DEBUG=1) each process prints the traceback of the exception that is being handled as well.
    """
    said = f"regard: {message}"
    if os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
        traceback.print_exc()
    if is_rank0() and sys.stderr is not None:  # closed before the start, as by `2>&-`
        sys.stderr.write(f"{said}\n")
    if is_under_torchrun():
        with suppress(OSError):  # a disk that is full may be what the sentence is about
            Path(os.environ[TORCHRUN_ERROR_FILE]).write_text(json.dumps(_make_torchrun_report(said)), encoding="utf-8")
    sys.exit(2)


def _make_torchrun_report(message: str) -> dict[str, object]:
    """The form in which torchrun reads it."""
    # The earliest is the cause, by whole seconds: those that torchrun ends because of this one must all seem later.
    return {"message": {"message": message, "extraInfo": {"timestamp": str(int(time.time()) - 1)}}}
