"""One process at a time writes into a run's folder, or a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import portalocker

from regard.errors import UserError

_HELD_LOCKS = set[IO[Any]]()  # by this process


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Nobody else trains into the folder meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    busy = f"another process is training into {folder}; wait for it, or choose another --out"
    with (folder / ".lock").open("a") as lock:
        lock_file(lock, busy)
        _HELD_LOCKS.add(lock)
        try:
            yield
        finally:
            _HELD_LOCKS.discard(lock)


def _release_locks_in_child() -> None:
    """In a child, which would hold on to what its parent holds: one that reads outlives a parent who is killed."""
    while _HELD_LOCKS:
        _HELD_LOCKS.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_locks_in_child)


def lock_file(file: IO[Any], busy_message: str) -> None:
    """Makes an open file this process's alone until it is closed, however that happens; `busy` is said to others."""
    try:
        portalocker.lock(file, portalocker.LOCK_EX | portalocker.LOCK_NB)
    except portalocker.AlreadyLocked as error:
        file.close()
        raise UserError(busy_message) from error
