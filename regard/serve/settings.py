"""Settings of the HTTP service, which are the options of `regard serve`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from regard.errors import UserError

ORIGIN = re.compile(r"https?://[^/\s]+|\*")
URL_PREFIX = re.compile(r"(?:/[\w.~-]+)*")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the service. Each field is an option of `regard serve`, described in `cli/options.yaml`.

    A limit of -1 is none. Glossaries are by language pair, such as `en-de`; `""` if only one is served.
    """

    host: str = "127.0.0.1"
    port: int = 5000
    beam: int = 5
    glossary: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    precision: str | None = None
    device: Literal["auto", "cuda", "cpu"] = "auto"
    processes: int = 1  # that decode, for each model; 0: the service itself does
    batch_tokens: int = 2000
    batch_pieces: int = 64
    queue: int = 4000
    char_limit: int = 20_000
    batch_limit: int = 1000
    alternatives_limit: int = 10
    body_limit: int = 4_000_000
    file_limit: int = 20_000_000
    kept_limit: int = 1_000_000_000
    connection_limit: int = 500
    patience: float = 30.0
    req_limit: int = -1
    hourly_req_limit: int = -1
    daily_req_limit: int = -1
    ban_after: int = -1
    keys: Path | None = None
    require_key: bool = False
    key_link: str = ""
    files: bool = True
    suggestions: Path | None = None
    metrics_token: str = ""
    trust_proxy: bool = False
    cors: tuple[str, ...] = ()
    public_url: str = ""
    url_prefix: str = ""
    page: bool = True

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
