"""`regard serve` and `regard keys`: the HTTP service, and its API keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import typer

from regard.cli.options import describe_options, read_two_column_file
from regard.errors import UserError
from regard.serve.access import ApiKeyStore
from regard.serve.settings import Settings


@describe_options
def serve(runs: list[str], *, settings: Settings) -> None:
    """Serve models over HTTP with LibreTranslate's API, and a web page that shows the attention.

    Example: regard serve runs/mine --port 5000
    """
    try:
        from regard.serve.server import serve as run
    except ModuleNotFoundError as error:
        raise UserError(f"serving needs {error.name}: pip install 'regard[serve]'") from error
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


keys = typer.Typer(help="API keys of the service: add, list, revoke.", no_args_is_help=True)
DEFAULT_KEYS_FILE = Path("keys.db")
HEADER = ("key", "made", "minute", "hour", "day", "text", "note")


@keys.command()
@describe_options
def add(
    note: str = "",
    req_limit: int | None = None,
    hourly_req_limit: int | None = None,
    daily_req_limit: int | None = None,
    char_limit: int | None = None,
    file: Path = DEFAULT_KEYS_FILE,
) -> None:
    """Create an API key and print it; only its hash is stored, so it cannot be shown again. A limit of -1 is no limit.

    Example: regard keys add "the wiki" --req-limit 120 --char-limit 5000
    """
    key = ApiKeyStore.create(file).add(
        note,
        req_limit=req_limit,
        hourly_req_limit=hourly_req_limit,
        daily_req_limit=daily_req_limit,
        char_limit=char_limit,
    )
    typer.echo(key)


@keys.command("list")
@describe_options
def list_keys(file: Path = DEFAULT_KEYS_FILE) -> None:
    """List the keys: first characters, creation date, limits (-: the service's default), note.

    Example: regard keys list --keys keys.db
    """
    rows: list[tuple[str, ...]] = [HEADER]
    for key in ApiKeyStore(file).list():
        limits = (key.req_limit, key.hourly_req_limit, key.daily_req_limit, key.char_limit)
        rows.append((key.id, key.made, *("-" if limit is None else str(limit) for limit in limits), key.note))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        typer.echo("  ".join(padded).rstrip())


@keys.command()
@describe_options
def revoke(key: str, file: Path = DEFAULT_KEYS_FILE) -> None:
    """Revoke a key.

    Example: regard keys revoke 3f9a0c12
    """
    revoked = ApiKeyStore(file).revoke(key)
    typer.echo(
        f"{revoked.id}{f' ({revoked.note})' if revoked.note else ''} is revoked; the service refuses it from now on"
    )
