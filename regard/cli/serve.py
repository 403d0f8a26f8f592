"""`regard serve`: the HTTP service."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import expand_options, read_two_column_file
from regard.errors import UserError
from regard.serve.settings import Settings


@expand_options
def serve(
    runs: Annotated[list[str], typer.Argument(help="Runs to serve; RUN=en-de if a run does not name its languages.")],
    *,
    settings: Settings,
) -> None:
    """Serve models over HTTP with LibreTranslate's API, and a web page that shows the attention.

    Example: regard serve runs/mine --port 5000
    """
    try:
        from regard.serve import serve as run
    except ModuleNotFoundError as error:
        raise UserError(f"serving needs {error.name}: pip install 'regard[serve]'") from error
    if settings.require_key and settings.keys is None:
        raise UserError("--require-key needs --keys, the file that `regard keys add` writes")
    if settings.public_url and not settings.public_url.startswith(("http://", "https://")):
        raise UserError(f"--public-url must be a URL like https://example.org, not {settings.public_url!r}")
    run(runs, replace(settings, glossary=_read_glossaries(settings.glossary), cors=tuple(settings.cors)))


def _read_glossaries(arguments: Iterable[str]) -> dict[str, dict[str, str]]:
    """Read glossary files, by the language pair before each (`en-de=FILE`)."""
    glossaries: dict[str, dict[str, str]] = {}
    for argument in arguments:
        pair, _, path = argument.rpartition("=")
        if pair in glossaries:
            raise UserError(
                f"--glossary {argument}: there is another one{f' for {pair}' if pair else ''}; put them in one file"
            )
        glossaries[pair] = read_two_column_file(Path(path))
    return glossaries
