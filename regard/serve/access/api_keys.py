"""Who may ask: keys in a file of SQLite's, of which only hashes are kept."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from regard.errors import UserError
from regard.serve.file_store import write_private

TABLE = """
create table if not exists keys (
    id text primary key, hash blob not null, req_limit integer, char_limit integer, note text not null,
    made text not null, hourly_req_limit integer, daily_req_limit integer
)
"""
LATER = ("hourly_req_limit", "daily_req_limit")  # columns that older files lack
KNOWN = "id, note, made, req_limit, hourly_req_limit, daily_req_limit, char_limit"
LETTERS = 8  # of a key's beginning, which names it


@dataclass(frozen=True)
class Key:
    """What is known of a key; a limit of None is that of everybody."""

    id: str
    note: str
    made: str
    req_limit: int | None = None  # in a minute …
    hourly_req_limit: int | None = None
    daily_req_limit: int | None = None
    char_limit: int | None = None


class Keys:
    """The file."""

    def __init__(self, path: Path) -> None:
        """A file that is there: a wrong name must not become a file in which there is no key."""
        if not path.is_file():
            raise UserError(f"there is no file of keys {path}; make one with: regard keys add NOTE --file {path}")
        self.path = path
        with self.opened() as database:
            database.execute(TABLE)
            there = {row[1] for row in database.execute("pragma table_info(keys)")}
            for column in LATER:
                if column not in there:
                    database.execute(f"alter table keys add column {column} integer")

    @classmethod
    def made(cls, path: Path) -> Keys:
        """The file, which is made where there is none."""
        with suppress(FileExistsError):
            write_private(path)
        return cls(path)

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """The database; what is done to it is done as a whole, or not at all."""
        place = f"{self.path.absolute().as_uri()}?mode=rw"  # a file that was taken away is not made again
        try:
            with closing(sqlite3.connect(place, timeout=0.5, uri=True)) as database, database:
                yield database
        except sqlite3.Error as error:
            raise UserError(f"{self.path} cannot be used as a file of keys: {error}") from error

    def add(
        self,
        note: str = "",
        *,
        req_limit: int | None = None,
        hourly_req_limit: int | None = None,
        daily_req_limit: int | None = None,
        char_limit: int | None = None,
    ) -> str:
        """A new key; nobody can tell it again."""
        key = secrets.token_hex(20)
        made = datetime.now(UTC).isoformat(timespec="seconds")
        with self.opened() as database:
            limits = (req_limit, hourly_req_limit, daily_req_limit, char_limit)
            row = (key[:LETTERS], note, made, *limits, hashed(key))
            database.execute(f"insert into keys ({KNOWN}, hash) values (?, ?, ?, ?, ?, ?, ?, ?)", row)
        return key

    def list(self) -> list[Key]:
        """All keys, the oldest first."""
        with self.opened() as database:
            rows = database.execute(f"select {KNOWN} from keys order by made, id")
            return [Key(*row) for row in rows]

    def revoke(self, id: str) -> Key:
        """Takes a key away, named by its first letters or given whole; what it was."""
        with self.opened() as database:
            row = database.execute(f"select {KNOWN} from keys where id = ?", (id[:LETTERS],)).fetchone()
            if row is None:
                raise UserError(f"{self.path} has no key {id[:LETTERS]!r}")
            database.execute("delete from keys where id = ?", (id[:LETTERS],))
        return Key(*row)

    def find(self, key: str) -> Key | None:
        """The key, if there is such a one. How long it takes tells nothing of it."""
        wanted = f"select {KNOWN}, hash from keys where id = ?"
        id = key[:LETTERS] if key.isascii() else ""
        with self.opened() as database:
            row = database.execute(wanted, (id,)).fetchone()
        *known, expected = row or (None, hashed(""))
        same = hmac.compare_digest(hashed(key), expected)
        return Key(*known) if row and same else None


def hashed(key: str) -> bytes:
    """What is kept of a key: it is long and drawn by chance, so that nobody can guess it from this."""
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def bearer(headers: Mapping[str, str]) -> str:
    """The token of `Authorization: Bearer TOKEN`; nothing where there is none, or something else."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
