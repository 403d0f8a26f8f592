"""API keys in an SQLite file, which holds only their hashes."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path

from regard.errors import UserError

TABLE = """
create table if not exists keys (
    id text primary key, hash blob not null, req_limit integer, char_limit integer, note text not null,
    made text not null, hourly_req_limit integer, daily_req_limit integer
)
"""
COLUMNS = "id, note, made, req_limit, hourly_req_limit, daily_req_limit, char_limit"  # the fields of `ApiKey`
ID_LENGTH = 8  # first characters of a key, which identify it
OWNER_ONLY = 0o600


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
