"""`regard keys`: who may ask the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

keys = typer.Typer(help="Keys for the service: add, list, revoke.", no_args_is_help=True)
File = Annotated[Path, typer.Option("--file", help="The file of keys, as `regard serve --keys` takes it.")]
KEYS = Path("keys.db")


@keys.command()
def add(
    note: Annotated[str, typer.Argument(help="Whose it is, for `list`.")] = "",
    req_limit: Annotated[int | None, typer.Option(help="Requests in a minute, instead of everybody's.")] = None,
    hourly_req_limit: Annotated[int | None, typer.Option(help="The same in an hour.")] = None,
    daily_req_limit: Annotated[int | None, typer.Option(help="The same in a day.")] = None,
    char_limit: Annotated[int | None, typer.Option(help="Characters of one text, instead of everybody's.")] = None,
    file: File = KEYS,
) -> None:
    """Make a key and print it: it is kept as a hash, so nobody can print it again. A limit of -1 is none.

    Example: regard keys add "the wiki" --req-limit 120 --char-limit 5000
    """
    from regard.serve.keys import Keys

    key = Keys(file).add(
        note,
        req_limit=req_limit,
        hourly_req_limit=hourly_req_limit,
        daily_req_limit=daily_req_limit,
        char_limit=char_limit,
    )
    typer.echo(key)


@keys.command("list")
def list_keys(file: File = KEYS) -> None:
    """List the keys: the letters that each begins with, its limits (minute, hour, day, text), its owner."""
    from regard.serve.keys import Keys

    for key in Keys(file).list():
        bounds = (key.req_limit, key.hourly_req_limit, key.daily_req_limit, key.char_limit)
        limits = " ".join("-" if limit is None else str(limit) for limit in bounds)
        typer.echo(f"{key.id}  {key.made}  {limits}  {key.note}".rstrip())


@keys.command()
def revoke(
    key: Annotated[str, typer.Argument(help="The letters that it begins with, or the whole key.")], file: File = KEYS
) -> None:
    """Take a key away.

    Example: regard keys revoke 3f9a0c12
    """
    from regard.serve.keys import Keys

    Keys(file).revoke(key)
