"""`regard keys`: who may ask the service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from regard.serve.keys import Key

keys = typer.Typer(help="Keys for the service: add, list, revoke.", no_args_is_help=True)
KeysFile = Annotated[Path, typer.Option("--keys", "--file", help="The file of keys, as `regard serve` takes it.")]
DEFAULT_KEYS_FILE = Path("keys.db")
HEADER = ("key", "made", "minute", "hour", "day", "text", "note")


@keys.command()
def add(
    note: Annotated[str, typer.Argument(help="Whose it is, for `list`.")] = "",
    req_limit: Annotated[int | None, typer.Option(help="Requests in a minute, instead of everybody's.", min=-1)] = None,
    hourly_req_limit: Annotated[int | None, typer.Option(help="The same in an hour.", min=-1)] = None,
    daily_req_limit: Annotated[int | None, typer.Option(help="The same in a day.", min=-1)] = None,
    char_limit: Annotated[
        int | None, typer.Option(help="Characters of one text, instead of everybody's.", min=-1)
    ] = None,
    file: KeysFile = DEFAULT_KEYS_FILE,
) -> None:
    """Make a key and print it: it is kept as a hash, so nobody can print it again. A limit of -1 is none.

    Example: regard keys add "the wiki" --req-limit 120 --char-limit 5000
    """
    from regard.serve.keys import Keys

    key = Keys.made(file).add(
        note,
        req_limit=req_limit,
        hourly_req_limit=hourly_req_limit,
        daily_req_limit=daily_req_limit,
        char_limit=char_limit,
    )
    typer.echo(key)


@keys.command("list")
def list_keys(file: KeysFile = DEFAULT_KEYS_FILE) -> None:
    """List the keys: the letters that each begins with, when it was made, its limits (-: everybody's), its note.

    Example: regard keys list --keys keys.db
    """
    from regard.serve.keys import Keys

    rows = [HEADER, *map(_format_key_row, Keys(file).list())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        typer.echo("  ".join(padded).rstrip())


def _format_key_row(key: Key) -> tuple[str, ...]:
    """A key, as it is listed."""
    bounds = (key.req_limit, key.hourly_req_limit, key.daily_req_limit, key.char_limit)
    return key.id, key.made, *("-" if bound is None else str(bound) for bound in bounds), key.note


@keys.command()
def revoke(
    key: Annotated[str, typer.Argument(help="The letters that it begins with, or the whole key.")],
    file: KeysFile = DEFAULT_KEYS_FILE,
) -> None:
    """Take a key away.

    Example: regard keys revoke 3f9a0c12
    """
    from regard.serve.keys import Keys

    gone = Keys(file).revoke(key)
    typer.echo(f"{gone.id}{f' ({gone.note})' if gone.note else ''} is revoked; whoever has it is refused from now on")
