"""Translated files, stored for download for a while; files of one client never displace those of another."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import NamedTuple

from regard.serve.http.errors import HTTPError

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

PREFIX = "regard-documents-"  # of the folder of a service; those of earlier versions, regard-files-, have no lock
LIFETIME = 1800.0  # seconds for which a file can be downloaded
CLIENT_FRACTION = 10  # one client may use a tenth of the capacity
MIN_SIZE = 100_000  # bytes that the smallest file counts as, which also limits the number of files
OWNER_ONLY = 0o600


class StoredFile(NamedTuple):
    """Owner, size and age of a file."""

    owner: str
    size: int
    created: float


class FileStore:
    """Files under names that cannot be guessed, in a folder that is deleted with the process."""

    def __init__(self, capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Store at most `capacity` bytes."""
        self.capacity = capacity
        self.clock = clock
        _remove_stale_folders()
        self.folder, self.lock = _make_locked_folder()
        self.files: dict[str, StoredFile] = {}  # oldest first

    async def add(self, owner: str, name: str, content: bytes) -> str:
        """Store a file, for which the oldest ones of its owner may be deleted, and return its key."""
        size = self.check_capacity(owner, len(content))
        while self.count_bytes(owner) + size > self.capacity // CLIENT_FRACTION:
            self.delete(next(key for key, file in self.files.items() if file.owner == owner))
        key = f"{uuid.uuid4()}.{name}"
        self.files[key] = StoredFile(owner, size, self.clock())
        try:
            await asyncio.to_thread(_write_private, self._path(key), content)
        except OSError:
            self.delete(key)
            raise
        asyncio.get_running_loop().call_later(LIFETIME, self.delete, key)
        if key not in self.files:  # it was deleted while it was written
            self._path(key).unlink(missing_ok=True)
        return key

    def check_capacity(self, owner: str, length: int) -> int:
        """Return the size that a file of so many bytes counts as; refuse it if there is no space for it."""
        for key in [key for key, file in self.files.items() if self._age(file) > LIFETIME]:
            self.delete(key)
        size, maximum = max(length, MIN_SIZE), self.capacity // CLIENT_FRACTION
        if size > maximum:
            raise HTTPError(
                f"Invalid request: the file ({length}) exceeds what is kept for one client ({maximum})", 413
            )
        own = self.count_bytes(owner)
        if self.count_bytes() - own + min(own + size, maximum) > self.capacity:
            seconds = math.ceil(LIFETIME - max(map(self._age, self.files.values())))
            message = "Too many translated files are kept at the moment; try again later"
            raise HTTPError(message, 503, {"Retry-After": str(max(1, seconds))})
        return size

    def count_bytes(self, owner: str | None = None) -> int:
        """Return the bytes that are stored, in all or of one owner."""
        return sum(file.size for file in self.files.values() if owner in (None, file.owner))

    def find(self, key: str) -> Path | None:
        """Return the path of a file, None if there is none; a path is never made of an unknown key."""
        return self._path(key) if key in self.files and self._age(self.files[key]) <= LIFETIME else None

    def delete(self, key: str) -> None:
        """Delete a file, unless it was deleted before."""
        if self.files.pop(key, None):
            with suppress(PermissionError):  # on Windows, while it is downloaded; it goes with the folder
                self._path(key).unlink(missing_ok=True)

    def close(self) -> None:
        """Delete all files."""
        self.folder.cleanup()
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def _age(self, file: StoredFile) -> float:
        return self.clock() - file.created

    def _path(self, key: str) -> Path:
        return Path(self.folder.name) / key.partition(".")[0]


def _write_private(path: Path, content: bytes) -> None:
    path.touch(OWNER_ONLY, exist_ok=False)
    path.write_bytes(content)


def _make_locked_folder() -> tuple[TemporaryDirectory[str], int | None]:
    """Make a folder and lock it for the lifetime of this process, so that no other one takes it for a stale one."""
    while True:
        folder = TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)  # Windows keeps files that are read
        with suppress(BlockingIOError):
            lock = _lock(Path(folder.name))
            if Path(folder.name).is_dir():
                return folder, lock
            if lock is not None:
                os.close(lock)
        folder.cleanup()  # another process took it for a stale one before it was locked


def _remove_stale_folders() -> None:
    """Remove the folders of services that were killed."""
    if fcntl is None:
        return
    for folder in Path(gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is in use, or has gone meanwhile
            if folder.is_symlink() or folder.stat().st_uid != os.getuid() or (lock := _lock(folder)) is None:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """Lock a folder; BlockingIOError if another process has, None if folders cannot be locked here, or it has gone."""
    if fcntl is None:
        return None
    lock = None
    try:
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if lock is not None:
            os.close(lock)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return lock
