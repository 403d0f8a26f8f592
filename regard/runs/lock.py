"""File locks: only one process at a time writes to a run's folder or a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import portalocker

from regard.errors import UserError

_HELD_LOCKS = set[IO[Any]]()  # open lock files of this process


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Hold the run's lock inside the context; raise UserError if another process holds it."""
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
    """Close inherited lock files after a fork: a data worker may outlive its killed parent and would keep the lock."""
    while _HELD_LOCKS:
        _HELD_LOCKS.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_locks_in_child)


def lock_file(file: IO[Any], busy_message: str) -> None:
    """Lock an open file until it is closed or the process ends; raise UserError(busy_message) if it is locked."""
    try:
        portalocker.lock(file, portalocker.LOCK_EX | portalocker.LOCK_NB)
    except portalocker.AlreadyLocked as error:
        file.close()
        raise UserError(busy_message) from error
