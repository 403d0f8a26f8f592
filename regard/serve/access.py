"""Access to the service: API keys, and rate limits of each client.

Keys are in an SQLite file, which holds only their hashes. A client has a window of requests per period; repeated
offenders are banned.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from ipaddress import IPv6Network, ip_address
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import UserError
from regard.serve.errors import HTTPError

TABLE = """
create table if not exists keys (
    id text primary key, hash blob not null, req_limit integer, char_limit integer, note text not null,
    made text not null, hourly_req_limit integer, daily_req_limit integer
)
"""
COLUMNS = "id, note, made, req_limit, hourly_req_limit, daily_req_limit, char_limit"  # the fields of `ApiKey`
ID_LENGTH = 8  # first characters of a key, which identify it
OWNER_ONLY = 0o600
PERIODS = {"minute": 60.0, "hour": 3600.0, "day": 86400.0}
CHARACTERS = 1000  # of text that one request pays for
MAX_CLIENTS = 50_000  # clients that are remembered at a time
MAX_ADDRESS = 100  # characters that are kept of an X-Forwarded-For entry


@dataclass(frozen=True)
class ApiKey:
    """Stored properties of a key; a limit of None is that of the service."""

    id: str
    note: str
    made: str
    req_limit: int | None = None  # per minute
    hourly_req_limit: int | None = None
    daily_req_limit: int | None = None
    char_limit: int | None = None


class ApiKeyStore:
    """File of API keys."""

    def __init__(self, path: Path) -> None:
        """Open an existing file: a mistyped name must not become an empty one."""
        if not path.is_file():
            raise UserError(f"there is no file of keys {path}; make one with: regard keys add NOTE --keys {path}")
        self.path = path
        with self._connect() as database:
            database.execute(TABLE)

    @classmethod
    def create(cls, path: Path) -> ApiKeyStore:
        """Open a file, and create it if it does not exist, readable by its owner only."""
        path.touch(OWNER_ONLY)
        return cls(path)

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """Open the database for one transaction."""
        uri = f"{self.path.absolute().as_uri()}?mode=rw"  # a file that was deleted is not created again
        try:
            with closing(sqlite3.connect(uri, timeout=0.5, uri=True)) as database, database:
                yield database
        except sqlite3.Error as error:
            raise UserError(f"{self.path} cannot be used as a file of keys: {error}") from error

    def add(self, note: str = "", **limits: int | None) -> str:
        """Create a key with limits as in `ApiKey`, and return it; it cannot be read from the file again."""
        key = secrets.token_hex(20)
        stored = ApiKey(key[:ID_LENGTH], note, datetime.now(UTC).isoformat(timespec="seconds"), **limits)
        with self._connect() as database:
            row = (*astuple(stored), hash_key(key))
            database.execute(f"insert into keys ({COLUMNS}, hash) values (?, ?, ?, ?, ?, ?, ?, ?)", row)
        return key

    def list(self) -> list[ApiKey]:
        """Return all keys, oldest first."""
        with self._connect() as database:
            return [ApiKey(*row) for row in database.execute(f"select {COLUMNS} from keys order by made, id")]

    def revoke(self, key: str) -> ApiKey:
        """Delete a key, given by its first characters or as a whole, and return its properties."""
        id = key[:ID_LENGTH]
        with self._connect() as database:
            # Not by `returning`, which SQLite before 3.35 does not have.
            row = database.execute(f"select {COLUMNS} from keys where id = ?", (id,)).fetchone()
            database.execute("delete from keys where id = ?", (id,))
        if row is None:
            raise UserError(f"{self.path} has no key {id!r}")
        return ApiKey(*row)

    def find(self, key: str) -> ApiKey | None:
        """Return the properties of a key, None if there is none; the time that this takes tells nothing about it."""
        id = key[:ID_LENGTH] if key.isascii() else ""
        with self._connect() as database:
            row = database.execute(f"select {COLUMNS}, hash from keys where id = ?", (id,)).fetchone()
        *properties, expected = row or (None, hash_key(""))
        is_same = hmac.compare_digest(hash_key(key), expected)
        return ApiKey(*properties) if row and is_same else None


def hash_key(key: str) -> bytes:
    """Hash a key for storage; as it is long and random, a fast hash is safe."""
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def bearer_token(headers: Mapping[str, str]) -> str:
    """Return the token of `Authorization: Bearer TOKEN`; empty if there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def count_requests(characters: int) -> int:
    """Return the requests that a text counts as by its length: one for each 1,000 characters begun."""
    return math.ceil(characters / CHARACTERS)


class Quota(NamedTuple):
    """Maximum requests in each period; -1 is no limit."""

    minute: int = -1
    hour: int = -1
    day: int = -1

    @property
    def limits(self) -> dict[str, int]:
        """The limits, by period; without those of -1."""
        return {period: limit for period, limit in self._asdict().items() if limit >= 0}


@dataclass(slots=True)
class Window:
    """Requests of one client in a period."""

    end: float
    count: int = 0


class FixedWindows:
    """Requests of each client in a period that begins with its first request."""

    def __init__(self, period: float, max_clients: int = MAX_CLIENTS) -> None:
        """Beyond `max_clients`, the clients whose periods end first are forgotten."""
        self.period = period
        self.max_clients = max_clients
        self.clients: dict[str, Window] = {}  # by the ends of their periods

    def get(self, client: str, now: float) -> Window:
        """Return the current period of a client, or a new one."""
        window = self.clients.get(client)
        return window if window and now < window.end else Window(now + self.period)

    def add(self, client: str, cost: int, now: float) -> None:
        """Count requests of a client."""
        window = self.get(client, now)
        if not window.count:
            self.clients.pop(client, None)
            self.clients[client] = window  # behind all others
        window.count += cost
        while len(self.clients) > self.max_clients or next(iter(self.clients.values())).end <= now:
            del self.clients[next(iter(self.clients))]


class RateLimiter:
    """Windows of all periods, and bans of clients that exceed their limits too often."""

    def __init__(self, ban_after: int = -1, clock: Callable[[], float] = time.monotonic) -> None:
        self.ban_after = ban_after
        self.clock = clock
        self.windows = {name: FixedWindows(period) for name, period in PERIODS.items()}
        self.violations = FixedWindows(PERIODS["hour"])

    def consume(self, client: str, cost: int, quota: Quota, *, by_length: int = 0, counted: int = 0) -> None:
        """Count `cost` requests in each period, or refuse them if they exceed the quota.

        If `by_length` is more, that many are counted, but at most the limit of the period, so that even the longest
        text is accepted. `counted` requests were counted for the same work before, and will be if the client retries.
        """
        self.refuse_banned(client)
        self.check(client, cost, quota, by_length=by_length, counted=counted)
        for period, limit in quota.limits.items():
            self.windows[period].add(client, max(cost, min(by_length, limit - counted)), self.clock())

    def check(self, client: str, cost: int, quota: Quota, *, by_length: int = 0, counted: int = 0) -> None:
        """Refuse requests that exceed the quota; see `consume`."""
        now = self.clock()
        for period, limit in quota.limits.items():
            window = self.windows[period].get(client, now)
            if window.count + max(cost, min(by_length, limit - counted)) > limit:
                if self.ban_after >= 0:
                    self.violations.add(client, 1, now)
                seconds = str(math.ceil(window.end - now))
                raise HTTPError(f"Slowdown: {limit} per 1 {period}", 429, {"Retry-After": seconds})

    def refuse_banned(self, client: str) -> None:
        """Refuse a client that exceeded its limits too often within an hour."""
        if self.ban_after >= 0 and self.violations.get(client, self.clock()).count >= max(1, self.ban_after):
            raise HTTPError("Too many request limits violations", 403)


def client_address(scope: Mapping[str, Any], trust_proxy: bool) -> str:
    """Return the address of a client: behind a trusted proxy, the last entry of X-Forwarded-For, which it wrote.

    uvicorn would take the first entry, which the client can write.
    """
    forwarded = [value for name, value in scope["headers"] if name == b"x-forwarded-for"] if trust_proxy else []
    last = forwarded[-1].decode("latin-1").rpartition(",")[2].strip() if forwarded else ""
    return last[:MAX_ADDRESS] or str((scope.get("client") or ("",))[0])


def client_network(address: str) -> str:
    """Return what all addresses of one client have in common: an IPv4 address, or the first 64 bits of an IPv6 one."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address  # a name that a proxy gave
    if parsed.version == 4:
        return str(parsed)
    return str(parsed.ipv4_mapped or IPv6Network((int(parsed), 64), strict=False))
