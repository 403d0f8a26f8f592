"""Translated files, kept for a while to be fetched: nobody's are put away to make room for somebody else's."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from regard.serve.private import write_private
from regard.serve.refusal import Refusal

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
        self.folder = TemporaryDirectory(prefix="regard-files-")
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

    def path(self, key: str) -> Path:
        """Where a file of ours lies."""
        return Path(self.folder.name) / key.partition(".")[0]
