"""Translated files, kept for a while to be fetched: nobody's are put away to make room for somebody else's."""

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

from regard.serve.http.errors import Refusal

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

PREFIX = "regard-documents-"  # of the folder of a service; those of earlier versions, regard-files-, have no lock

KEPT = 1800.0  # seconds that a file can be fetched
SHARE = 10  # one client may have a tenth of the room
LEAST = 100_000  # bytes that the smallest file counts as, so that their number is bounded as well


class Kept(NamedTuple):
    """One of them."""

    owner: str
    size: int
    since: float


class Shelf:
    """Files, each under a name that nobody can guess, in a folder that goes with the process."""

    def __init__(self, room: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`room` for so many bytes."""
        self.room = room
        self.clock = clock
        _remove_stale_folders()
        self.folder, self.lock = _make_locked_folder()
        self.files: dict[str, Kept] = {}  # the oldest first

    async def put(self, owner: str, name: str, content: bytes) -> str:
        """Keeps a file, for which the owner's oldest may go; the name that it can be fetched by."""
        size = self.check(owner, len(content))
        while self.used(owner) + size > self.room // SHARE:
            self.drop(next(key for key, kept in self.files.items() if kept.owner == owner))
        key = f"{uuid.uuid4()}.{name}"
        self.files[key] = Kept(owner, size, self.clock())
        try:
            await asyncio.to_thread(write_private, self.path(key), content)
        except OSError:
            self.drop(key)
            raise
        asyncio.get_running_loop().call_later(KEPT, self.expire, key)
        if key not in self.files:  # it had to go while it was written
            self.path(key).unlink(missing_ok=True)
        return key

    def check(self, owner: str, length: int) -> int:
        """How much a file of so many bytes counts; refused where there is no room for it."""
        for key in [key for key, kept in self.files.items() if self.age(kept) > KEPT]:
            self.drop(key)
        size, share = max(length, LEAST), self.room // SHARE
        if size > share:
            raise Refusal(f"Invalid request: the file ({length}) exceeds what is kept for one client ({share})", 413)
        others = self.used() - self.used(owner)
        if others + min(self.used(owner) + size, share) > self.room:
            wait = math.ceil(KEPT - max(map(self.age, self.files.values())))
            text = "Too many translated files are kept at the moment; try again later"
            raise Refusal(text, 503, {"Retry-After": str(max(1, wait))})
        return size

    def used(self, owner: str | None = None) -> int:
        """Bytes that are kept, of all or of one."""
        return sum(kept.size for kept in self.files.values() if owner in (None, kept.owner))

    def get(self, key: str) -> Path | None:
        """Where a file lies, if it is still there; what a stranger says is never made part of a path."""
        return self.path(key) if key in self.files and self.age(self.files[key]) <= KEPT else None

    def age(self, kept: Kept) -> float:
        """Seconds since it was put here."""
        return self.clock() - kept.since

    def expire(self, key: str) -> None:
        """Puts a file away whose time is over, unless it is gone already."""
        if key in self.files:
            self.drop(key)

    def drop(self, key: str) -> None:
        """Puts a file away."""
        del self.files[key]
        self.path(key).unlink(missing_ok=True)

    def close(self) -> None:
        """Puts all of them away."""
        self.folder.cleanup()
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def path(self, key: str) -> Path:
        """Where a file of ours lies."""
        return Path(self.folder.name) / key.partition(".")[0]


def _make_locked_folder() -> tuple[TemporaryDirectory[str], int | None]:
    """Make a folder and lock it for as long as this process lives, so that no other one takes it for a stale one."""
    while True:
        folder = TemporaryDirectory(prefix=PREFIX)
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
    try:
        lock = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return lock


OWN = 0o600


def write_private(path: Path, content: bytes = b"") -> None:
    """A new file of its own, from the first byte on; one that is there already is an error."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), OWN), "wb") as file:
        file.write(content)
