"""Settings of the HTTP service, which are the options of `regard serve`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from regard.errors import UserError

ORIGIN = re.compile(r"https?://[^/\s]+|\*")
URL_PREFIX = re.compile(r"(?:/[\w.~-]+)*")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the service. Each field is an option of `regard serve`; a limit of −1 is none."""

    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0: all addresses of this machine.")] = "127.0.0.1"
    port: Annotated[int, Option("--port", "-p", help="Port to listen on; 0: any free port.", min=0, max=65535)] = 5000
    beam: Annotated[int, Option("--beam", "-b", help="Beam size; 1 is greedy search.", min=1)] = 5
    glossary: Annotated[
        Mapping[str, Mapping[str, str]],
        Option(
            help="Glossary file: term, tab, required translation, one per line; en-de=FILE if you serve several pairs.",
            metavar="FILE",
        ),
    ] = field(default_factory=dict)  # by language pair, such as en-de; "" if there is only one
    precision: Annotated[
        str | None, Option(help="`fp32`, or `int8`: faster, with nearly the same translations; for Transformers.")
    ] = None
    device: Annotated[
        Literal["auto", "cuda", "cpu"], Option(help="Device of the models; auto: a GPU if there is one.")
    ] = "auto"
    processes: Annotated[
        int,
        Option(
            "--jobs",
            "-j",
            help="Decoding processes per model, each with its own copy of it; 0: decode in the main process.",
            min=0,
        ),
    ] = 1
    batch_tokens: Annotated[int, Option(help="Maximum source tokens of a batch.", min=1)] = 2000
    batch_pieces: Annotated[int, Option(help="Maximum sentences of a batch; 1: no batching.", min=1)] = 64
    queue: Annotated[int, Option(help="Maximum sentences in the queue of a model.", min=1)] = 4000
    char_limit: Annotated[int, Option(help="Maximum characters of a text; -1: no limit.", min=-1)] = 20_000
    batch_limit: Annotated[int, Option(help="Maximum texts of a request; -1: no limit.", min=-1)] = 1000
    alternatives_limit: Annotated[
        int, Option(help="Maximum alternative translations of a text; -1: no limit.", min=-1)
    ] = 10
    body_limit: Annotated[int, Option(help="Maximum bytes of a request.", min=1)] = 4_000_000
    file_limit: Annotated[int, Option(help="Maximum bytes of a file.", min=1)] = 20_000_000
    kept_limit: Annotated[
        int, Option(help="Maximum bytes of translated files kept for download; a tenth of it per client.", min=1)
    ] = 1_000_000_000
    connection_limit: Annotated[int, Option(help="Maximum simultaneous connections; -1: no limit.", min=-1)] = 500
    patience: Annotated[
        float,
        Option(help="Timeout in seconds for a client to send a request, or to accept data of the response.", min=0.1),
    ] = 30.0
    req_limit: Annotated[int, Option(help="Maximum requests per client and minute; -1: no limit.", min=-1)] = -1
    hourly_req_limit: Annotated[int, Option(help="Maximum requests per client and hour.", min=-1)] = -1
    daily_req_limit: Annotated[int, Option(help="Maximum requests per client and day.", min=-1)] = -1
    ban_after: Annotated[
        int, Option(help="Ban a client for an hour after it exceeded the limits this many times; -1: never.", min=-1)
    ] = -1
    keys: Annotated[Path | None, Option(help="File of API keys, written by `regard keys`; clients may use them.")] = (
        None
    )
    require_key: Annotated[bool, Option("--require-key", help="Refuse requests without an API key.")] = False
    key_link: Annotated[
        str, Option(help="URL where users get an API key, for the response to requests without one.")
    ] = ""
    files: Annotated[bool, Option(help="Translate files.")] = True
    suggestions: Annotated[Path | None, Option(help="Store suggested translations in this file.")] = None
    metrics_token: Annotated[str, Option(help="Require this token for /metrics.", envvar="REGARD_METRICS_TOKEN")] = ""
    trust_proxy: Annotated[
        bool, Option("--trust-proxy", help="Trust X-Forwarded-For; only behind a proxy of your own.")
    ] = False
    cors: Annotated[
        tuple[str, ...],
        Option(
            help="Allow web pages of this origin (CORS), as in https://example.org; *: all, the default without "
            "--keys.",
            metavar="ORIGIN",
        ),
    ] = ()
    public_url: Annotated[str, Option(help="Public URL of the service, for the URLs of translated files.")] = ""
    url_prefix: Annotated[str, Option(help="Serve everything under this path only, as in /translate.")] = ""
    page: Annotated[bool, Option(help="Serve the web page.")] = True

    def __post_init__(self) -> None:
        """Check what the types of the options do not, and write the URL prefix as `/a`, or empty."""
        if self.require_key and self.keys is None:
            raise UserError("--require-key needs --keys, the file that `regard keys add` writes")
        if self.public_url and not self.public_url.startswith(("http://", "https://")):
            raise UserError(f"--public-url must be a URL like https://example.org, not {self.public_url!r}")
        prefix = self.url_prefix.strip("/")
        object.__setattr__(self, "url_prefix", f"/{prefix}" if prefix else "")
        if not URL_PREFIX.fullmatch(self.url_prefix):
            raise UserError(f"--url-prefix is a path like /translate, not {self.url_prefix!r}")
        for origin in self.cors:
            if not ORIGIN.fullmatch(origin):
                raise UserError(f"--cors is an origin like https://example.org, without a path, or *; not {origin!r}")
