"""`regard data …`: inspect, clean, download and create corpora."""

from __future__ import annotations

import typer

from regard.cli.back_translate import back_translate
from regard.cli.clean import clean
from regard.cli.distill import distill
from regard.cli.features import features
from regard.cli.get import get
from regard.cli.inspect import inspect
from regard.cli.make import make

data = typer.Typer(help="Inspect, clean, download and create corpora.", no_args_is_help=True)


@data.callback()
def data_group() -> None:
    """Inspect, clean, download and create corpora."""


for command in (inspect, clean, get, features, make, back_translate, distill):
    data.command()(command)
