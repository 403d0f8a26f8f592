"""`regard serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.translate import read_two_column_file
from regard.errors import UserError
from regard.serve.settings import Settings

DEFAULTS = Settings()


def serve(
    runs: Annotated[
        list[str], typer.Argument(help="Runs to serve; RUN=en-de where a run does not know its languages.")
    ],
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0: all of this machine's.")
    ] = DEFAULTS.host,
    port: Annotated[
        int, typer.Option(help="The port to listen on; 0: any that is free.", min=0, max=65535)
    ] = DEFAULTS.port,
    beam: Annotated[int, typer.Option(help="Hypotheses kept open.", min=1)] = DEFAULTS.beam,
    glossary: Annotated[
        list[str] | None,
        typer.Option(
            help="Terms, tab, how they must be translated, one a line; en-de=FILE where several pairs are served.",
            metavar="FILE",
        ),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="`fp32`, or `int8`: faster and nearly the same, for Transformers.")
    ] = DEFAULTS.precision,
    processes: Annotated[
        int,
        typer.Option(
            help="Processes that decode, for each model, each with its own copy; 0: the service decodes itself.", min=0
        ),
    ] = DEFAULTS.processes,
    batch_tokens: Annotated[int, typer.Option(help="Source tokens of a batch.", min=1)] = DEFAULTS.batch_tokens,
    batch_pieces: Annotated[
        int, typer.Option(help="Sentences of a batch; 1: no batching.", min=1)
    ] = DEFAULTS.batch_pieces,
    queue: Annotated[int, typer.Option(help="Sentences that may wait for one model.", min=1)] = DEFAULTS.queue,
    char_limit: Annotated[
        int, typer.Option(help="Characters of one text; -1: no limit.", min=-1)
    ] = DEFAULTS.char_limit,
    batch_limit: Annotated[
        int, typer.Option(help="Texts of one request; -1: no limit.", min=-1)
    ] = DEFAULTS.batch_limit,
    alternatives_limit: Annotated[
        int, typer.Option(help="Other translations of a text; -1: no limit.", min=-1)
    ] = DEFAULTS.alternatives_limit,
    body_limit: Annotated[int, typer.Option(help="Bytes of one request.", min=1)] = DEFAULTS.body_limit,
    file_limit: Annotated[int, typer.Option(help="Bytes of one file.", min=1)] = DEFAULTS.file_limit,
    kept_limit: Annotated[
        int, typer.Option(help="Bytes of translated files that are kept to be fetched; a tenth for each client.", min=1)
    ] = DEFAULTS.kept_limit,
    connection_limit: Annotated[
        int, typer.Option(help="Connections at a time; -1: no limit.", min=-1)
    ] = DEFAULTS.connection_limit,
    patience: Annotated[
        float,
        typer.Option(help="Seconds that a client may take to send a request, or take nothing of its answer.", min=0.1),
    ] = DEFAULTS.patience,
    req_limit: Annotated[
        int, typer.Option(help="Requests of one client in a minute; -1: no limit.", min=-1)
    ] = DEFAULTS.req_limit,
    hourly_req_limit: Annotated[int, typer.Option(help="The same in an hour.", min=-1)] = DEFAULTS.hourly_req_limit,
    daily_req_limit: Annotated[int, typer.Option(help="The same in a day.", min=-1)] = DEFAULTS.daily_req_limit,
    ban_after: Annotated[
        int, typer.Option(help="Refuse a client for an hour that went so often over the limits; -1: never.", min=-1)
    ] = DEFAULTS.ban_after,
    keys: Annotated[
        Path | None, typer.Option(help="The file of `regard keys`; those who have one may use it.")
    ] = DEFAULTS.keys,
    require_key: Annotated[
        bool, typer.Option("--require-key", help="Answer nobody without a key.")
    ] = DEFAULTS.require_key,
    key_link: Annotated[
        str, typer.Option(help="Where one gets a key, for the answer to those without.")
    ] = DEFAULTS.key_link,
    files: Annotated[bool, typer.Option(help="Whether to translate files.")] = DEFAULTS.files,
    suggestions: Annotated[
        Path | None, typer.Option(help="Keep suggested translations in this file.")
    ] = DEFAULTS.suggestions,
    metrics_token: Annotated[
        str, typer.Option(help="Show /metrics to those alone who have this token.", envvar="REGARD_METRICS_TOKEN")
    ] = DEFAULTS.metrics_token,
    trust_proxy: Annotated[
        bool, typer.Option("--trust-proxy", help="Believe X-Forwarded-For: only behind a proxy of your own.")
    ] = DEFAULTS.trust_proxy,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            help="Allow web pages of this origin to use the service, as in https://example.org; *: all, which is the "
            "default without --keys.",
            metavar="ORIGIN",
        ),
    ] = None,
    public_url: Annotated[
        str, typer.Option(help="URL of the service as clients see it, for the URLs of translated files.")
    ] = DEFAULTS.public_url,
    url_prefix: Annotated[
        str, typer.Option(help="Serve everything under this path, as in /translate, and nothing beside it.")
    ] = DEFAULTS.url_prefix,
    page: Annotated[bool, typer.Option(help="Whether to serve the page, too.")] = DEFAULTS.page,
) -> None:
    """Serve models over HTTP, for LibreTranslate's clients, and with a page that shows the attention.

    Example: regard serve runs/mine --port 5000
    """
    try:
        from regard.serve import serve as run
    except ModuleNotFoundError as error:
        raise UserError(f"serving needs {error.name}: pip install 'regard[serve]'") from error
    if require_key and keys is None:
        raise UserError("--require-key needs --keys: the file that `regard keys add` makes")
    if public_url and not public_url.startswith(("http://", "https://")):
        raise UserError(f"--public-url is a URL like https://example.org, not {public_url!r}")
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
    """The terms of each file, by the pair of languages that is named before it."""
    found: dict[str, dict[str, str]] = {}
    for one in arguments:
        pair, _, path = one.rpartition("=")
        if pair in found:
            raise UserError(
                f"--glossary {one}: there is one already{f' for {pair}' if pair else ''}; put them in one file"
            )
        found[pair] = read_two_column_file(Path(path))
    return found
