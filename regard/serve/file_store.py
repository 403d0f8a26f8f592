"""Translated files, stored for download for a while; files of one client never displace those of another."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from typing import NamedTuple

from regard.serve.http.errors import HTTPError

PREFIX = "regard-document-"  # of the names of the files in the system's temporary folder
LIFETIME = 1800.0  # seconds for which a file can be downloaded
CLIENT_FRACTION = 10  # one client may use a tenth of the capacity
MIN_SIZE = 100_000  # bytes that the smallest file counts as, which also limits the number of files
OWNER_ONLY = 0o600


class StoredFile(NamedTuple):
    """Owner, size and path of a file."""

    owner: str
    size: int
    path: Path


class FileStore:
    """Files under names that cannot be guessed, which are deleted after their lifetime, or when the service ends."""

    def __init__(self, capacity: int) -> None:
        """Store at most `capacity` bytes."""
        self.capacity = capacity
        self.files: dict[str, StoredFile] = {}  # oldest first
        _remove_stale_files()

    async def add(self, owner: str, name: str, content: bytes) -> str:
        """Store a file, for which the oldest ones of its owner may be deleted, and return its key."""
        size = self.check_capacity(owner, len(content))
        while self.count_bytes(owner) + size > self.capacity // CLIENT_FRACTION:
            self.delete(next(key for key, file in self.files.items() if file.owner == owner))
        id = uuid.uuid4()
        key, path = f"{id}.{name}", Path(gettempdir()) / f"{PREFIX}{id}"
        self.files[key] = StoredFile(owner, size, path)
        asyncio.get_running_loop().call_later(LIFETIME, self.delete, key)
        try:
            await asyncio.to_thread(_write_private, path, content)
        except OSError:
            self.delete(key)
            raise
        if key not in self.files:  # it was deleted while it was written
            path.unlink(missing_ok=True)
        return key

    def check_capacity(self, owner: str, length: int) -> int:
        """Return the size that a file of so many bytes counts as; refuse it if there is no space for it."""
        size, maximum = max(length, MIN_SIZE), self.capacity // CLIENT_FRACTION
        if size > maximum:
            raise HTTPError(
                f"Invalid request: the file ({length}) exceeds what is kept for one client ({maximum})", 413
            )
        own = self.count_bytes(owner)
        if self.count_bytes() - own + min(own + size, maximum) > self.capacity:
            raise HTTPError("Too many translated files are kept; try again later", 503, {"Retry-After": "60"})
        return size

    def count_bytes(self, owner: str | None = None) -> int:
        """Return the bytes that are stored, in all or of one owner."""
        return sum(file.size for file in self.files.values() if owner in (None, file.owner))

    def find(self, key: str) -> Path | None:
        """Return the path of a file, None if there is none; a path is never made of an unknown key."""
        return self.files[key].path if key in self.files else None

    def delete(self, key: str) -> None:
        """Delete a file, unless it was deleted before."""
        if file := self.files.pop(key, None):
            with suppress(PermissionError):  # on Windows, while it is downloaded
                file.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Delete all files."""
        for key in list(self.files):
            self.delete(key)


def _write_private(path: Path, content: bytes) -> None:
    _remove_stale_files()
    path.touch(OWNER_ONLY, exist_ok=False)
    path.write_bytes(content)


def _remove_stale_files() -> None:
    """Remove what services that were killed have left: nobody needs a file beyond its lifetime."""
    for path in Path(gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # it belongs to another user, or has gone meanwhile
            if path.lstat().st_mtime < time.time() - LIFETIME:
                path.unlink()
