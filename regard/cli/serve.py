"""`regard serve`: the HTTP service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.translate import read_two_column_file
from regard.errors import UserError
from regard.serve.settings import Settings

DEFAULTS = Settings()


def serve(
    runs: Annotated[list[str], typer.Argument(help="Runs to serve; RUN=en-de if a run does not name its languages.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0: all addresses of this machine.")
    ] = DEFAULTS.host,
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free port.", min=0, max=65535)] = DEFAULTS.port,
    beam: Annotated[int, typer.Option(help="Beam size; 1 is greedy search.", min=1)] = DEFAULTS.beam,
    glossary: Annotated[
        list[str] | None,
        typer.Option(
            help="Glossary file: term, tab, required translation, one per line; en-de=FILE if you serve several pairs.",
            metavar="FILE",
        ),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="`fp32`, or `int8`: faster, with nearly the same translations; for Transformers.")
    ] = DEFAULTS.precision,
    processes: Annotated[
        int,
        typer.Option(
            help="Decoding processes per model, each with its own copy of it; 0: decode in the main process.", min=0
        ),
    ] = DEFAULTS.processes,
    batch_tokens: Annotated[int, typer.Option(help="Maximum source tokens of a batch.", min=1)] = DEFAULTS.batch_tokens,
    batch_pieces: Annotated[
        int, typer.Option(help="Maximum sentences of a batch; 1: no batching.", min=1)
    ] = DEFAULTS.batch_pieces,
    queue: Annotated[int, typer.Option(help="Maximum sentences in the queue of a model.", min=1)] = DEFAULTS.queue,
    char_limit: Annotated[
        int, typer.Option(help="Maximum characters of a text; -1: no limit.", min=-1)
    ] = DEFAULTS.char_limit,
    batch_limit: Annotated[
        int, typer.Option(help="Maximum texts of a request; -1: no limit.", min=-1)
    ] = DEFAULTS.batch_limit,
    alternatives_limit: Annotated[
        int, typer.Option(help="Maximum alternative translations of a text; -1: no limit.", min=-1)
    ] = DEFAULTS.alternatives_limit,
    body_limit: Annotated[int, typer.Option(help="Maximum bytes of a request.", min=1)] = DEFAULTS.body_limit,
    file_limit: Annotated[int, typer.Option(help="Maximum bytes of a file.", min=1)] = DEFAULTS.file_limit,
    kept_limit: Annotated[
        int, typer.Option(help="Maximum bytes of translated files kept for download; a tenth of it per client.", min=1)
    ] = DEFAULTS.kept_limit,
    connection_limit: Annotated[
        int, typer.Option(help="Maximum simultaneous connections; -1: no limit.", min=-1)
    ] = DEFAULTS.connection_limit,
    patience: Annotated[
        float,
        typer.Option(
            help="Timeout in seconds for a client to send a request, or to accept data of the response.", min=0.1
        ),
    ] = DEFAULTS.patience,
    req_limit: Annotated[
        int, typer.Option(help="Maximum requests per client and minute; -1: no limit.", min=-1)
    ] = DEFAULTS.req_limit,
    hourly_req_limit: Annotated[
        int, typer.Option(help="Maximum requests per client and hour.", min=-1)
    ] = DEFAULTS.hourly_req_limit,
    daily_req_limit: Annotated[
        int, typer.Option(help="Maximum requests per client and day.", min=-1)
    ] = DEFAULTS.daily_req_limit,
    ban_after: Annotated[
        int,
        typer.Option(help="Ban a client for an hour after it exceeded the limits this many times; -1: never.", min=-1),
    ] = DEFAULTS.ban_after,
    keys: Annotated[
        Path | None, typer.Option(help="File of API keys, written by `regard keys`; clients may use them.")
    ] = DEFAULTS.keys,
    require_key: Annotated[
        bool, typer.Option("--require-key", help="Refuse requests without an API key.")
    ] = DEFAULTS.require_key,
    key_link: Annotated[
        str, typer.Option(help="URL where users get an API key, for the response to requests without one.")
    ] = DEFAULTS.key_link,
    files: Annotated[bool, typer.Option(help="Translate files.")] = DEFAULTS.files,
    suggestions: Annotated[
        Path | None, typer.Option(help="Store suggested translations in this file.")
    ] = DEFAULTS.suggestions,
    metrics_token: Annotated[
        str, typer.Option(help="Require this token for /metrics.", envvar="REGARD_METRICS_TOKEN")
    ] = DEFAULTS.metrics_token,
    trust_proxy: Annotated[
        bool, typer.Option("--trust-proxy", help="Trust X-Forwarded-For; only behind a proxy of your own.")
    ] = DEFAULTS.trust_proxy,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            help="Allow web pages of this origin (CORS), as in https://example.org; *: all, the default without "
            "--keys.",
            metavar="ORIGIN",
        ),
    ] = None,
    public_url: Annotated[
        str, typer.Option(help="Public URL of the service, for the URLs of translated files.")
    ] = DEFAULTS.public_url,
    url_prefix: Annotated[
        str, typer.Option(help="Serve everything under this path only, as in /translate.")
    ] = DEFAULTS.url_prefix,
    page: Annotated[bool, typer.Option(help="Serve the web page.")] = DEFAULTS.page,
) -> None:
    """Serve models over HTTP with LibreTranslate's API, and a web page that shows the attention.

    Example: regard serve runs/mine --port 5000
    """
    try:
        from regard.serve import serve as run
    except ModuleNotFoundError as error:
        raise UserError(f"serving needs {error.name}: pip install 'regard[serve]'") from error
    if require_key and keys is None:
        raise UserError("--require-key needs --keys, the file that `regard keys add` writes")
    if public_url and not public_url.startswith(("http://", "https://")):
        raise UserError(f"--public-url must be a URL like https://example.org, not {public_url!r}")
    run(
        runs,
        Settings(
            host=host,
            port=port,
            beam=beam,
            glossary=_read_glossaries(glossary or []),
            precision=precision,
            processes=processes,
            batch_tokens=batch_tokens,
            batch_pieces=batch_pieces,
            queue=queue,
            char_limit=char_limit,
            batch_limit=batch_limit,
            alternatives_limit=alternatives_limit,
            body_limit=body_limit,
            file_limit=file_limit,
            kept_limit=kept_limit,
            connection_limit=connection_limit,
            patience=patience,
            req_limit=req_limit,
            hourly_req_limit=hourly_req_limit,
            daily_req_limit=daily_req_limit,
            ban_after=ban_after,
            keys=keys,
            require_key=require_key,
            key_link=key_link,
            files=files,
            suggestions=suggestions,
            metrics_token=metrics_token,
            trust_proxy=trust_proxy,
            cors=tuple(cors or ()),
            public_url=public_url,
            url_prefix=url_prefix,
            page=page,
        ),
    )


def _read_glossaries(arguments: list[str]) -> dict[str, dict[str, str]]:
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
