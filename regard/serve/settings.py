"""How the service is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `regard serve` takes; a limit of −1 is none."""

    host: str = "127.0.0.1"
    port: int = 5000
    beam: int = 5
    glossary: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of en-de; "" where that is the only pair
    precision: str | None = None  # fp32, unless int8 is asked for
    processes: int = 1  # that decode, for each model; 0: this one decodes, too
    batch_tokens: int = 2000  # source tokens of a batch, each of its beam
    batch_pieces: int = 64  # sentences of a batch; 1: no batching
    queue: int = 4000  # sentences that may wait for one model
    char_limit: int = 20_000  # of one text
    batch_limit: int = 1000  # texts of one request
    alternatives_limit: int = 10
    body_limit: int = 4_000_000  # bytes of one request
    file_limit: int = 20_000_000  # bytes of one file
    kept_limit: int = 1_000_000_000  # bytes of translated files that are kept to be fetched
    connection_limit: int = 500  # connections at a time
    patience: float = 30.0  # seconds that a client may take to send a request, or take nothing of its answer
    req_limit: int = -1  # requests of one client in a minute …
    hourly_req_limit: int = -1
    daily_req_limit: int = -1
    ban_after: int = -1  # times over the limit in an hour, after which a client is refused for that hour
    keys: Path | None = None  # the file with the keys; None: everybody may ask without one
    require_key: bool = False
    key_link: str = ""  # where one gets a key
    files: bool = True  # whether files are translated
    suggestions: Path | None = None  # where better translations that people suggest are kept
    metrics_token: str = ""  # whoever asks for /metrics must have it, where there is one
    trust_proxy: bool = False  # whether X-Forwarded-For says who asks
    cors: tuple[str, ...] = ()  # origins of pages that may use the service; none: all, unless there are keys
    public_url: str = ""  # of the service as clients see it, for the URLs of translated files
    url_prefix: str = ""  # before the path of every address, as a proxy has it
    page: bool = True
