"""The `regard` command: subcommands, usage errors and exit codes. PyTorch is imported only where it is used."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer import Option

from regard.cli.align import align
from regard.cli.data import data
from regard.cli.doctor import doctor
from regard.cli.evaluate import evaluate
from regard.cli.export import export, import_model
from regard.cli.plot import plot
from regard.cli.reproduce import reproduce
from regard.cli.runs import report, runs
from regard.cli.serve import keys, serve
from regard.cli.train import TrainCommand, demo, recipes, train
from regard.cli.translate import predict, translate
from regard.console import is_rank0
from regard.errors import UserError
from regard.version import VERSION

USAGE_ERROR: Any = typer.BadParameter.__base__  # click's UsageError, which typer does not export

app = typer.Typer(
    name="regard",
    help="Train, inspect and serve attention models on your own text.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command(cls=TrainCommand)(train)
for command in (translate, predict, evaluate, align, plot, recipes, reproduce, runs, report, serve, export, doctor):
    app.command()(command)
app.command("import")(import_model)
app.add_typer(keys, name="keys")
app.add_typer(data, name="data")


def _print_version(wanted: bool) -> None:
    """Print the version and exit."""
    if wanted:
        typer.echo(f"regard {VERSION}")
        raise typer.Exit


@app.callback()
def regard(
    version: bool = Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
    debug: bool = Option(
        False, "--debug", help="Print the traceback of an error, with any command; so does REGARD_DEBUG=1."
    ),
) -> None:
    """Train, inspect and serve attention models on your own text."""


def main() -> None:
    """Run a command; a user error prints one sentence and exits with code 2."""
    if "--debug" in sys.argv[1:]:  # at any position: users append it to the command
        sys.argv.remove("--debug")
        os.environ[DEBUG_VARIABLE] = "1"
    if sys.platform == "win32":  # where pipes and files would get the code page of the system
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(encoding="utf-8")
    try:
        # In standalone mode click prints usage errors itself, in a frame with the usage.
        sys.exit(app(standalone_mode=not is_under_torchrun()))
    except UserError as error:
        exit_with_error(str(error))
    except USAGE_ERROR as error:
        exit_with_error(error.format_message())
    except ArithmeticError as error:  # NaN or inf in a diverged model
        if type(error) is not ArithmeticError:
            raise
        exit_with_error(f"{error}; if training has diverged, use a smaller learning rate")
    except (MemoryError, RuntimeError) as error:
        # Imports PyTorch, which the failed command has imported as well.
        from regard.data.loader import is_out_of_memory

        if isinstance(error, RuntimeError) and not is_out_of_memory(error):
            raise
        exit_with_error(f"not enough memory: {' '.join(str(error).split())[:200] or 'the allocation failed'}")
    except OSError as error:  # full disk, missing permission, file instead of a folder
        exit_with_error(f"{error.filename or 'the disk'}: {error.strerror or error}")


DEBUG_VARIABLE = "REGARD_DEBUG"  # the environment variable behind --debug
TORCHRUN_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # where torchrun reads the error of a process


def is_under_torchrun() -> bool:
    """Return True if torchrun has started this process."""
    return TORCHRUN_ERROR_FILE in os.environ


def exit_with_error(message: str) -> NoReturn:
    """Print one sentence and exit with code 2; with torchrun only rank 0 prints, and torchrun reports the cause.

    With --debug (REGARD_DEBUG=1) each process also prints the traceback of the current exception.
    """
    line = f"regard: {message}"
    if os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
        traceback.print_exc()
    if is_rank0() and sys.stderr is not None:  # None if it was closed, as by `2>&-`
        sys.stderr.write(f"{line}\n")
    if is_under_torchrun():
        # torchrun reports the earliest error, in whole seconds; processes that it ends because of it must seem later.
        report = {"message": {"message": line, "extraInfo": {"timestamp": str(int(time.time()) - 1)}}}
        with suppress(OSError):  # the disk may be full
            Path(os.environ[TORCHRUN_ERROR_FILE]).write_text(json.dumps(report), encoding="utf-8")
    sys.exit(2)
