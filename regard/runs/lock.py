"""One process at a time writes into a run's folder, or a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import portalocker

from regard.errors import UserError


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Nobody else trains into the folder meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    busy = f"another process is training into {folder}; wait for it, or choose another --out"
    with (folder / ".lock").open("a") as lock:
        seize(lock, busy)
        yield


def seize(file: IO[Any], busy: str) -> None:
    """Makes an open file this process's alone until it is closed, however that happens; `busy` is said to others."""
    try:
        portalocker.lock(file, portalocker.LOCK_EX | portalocker.LOCK_NB)
    except portalocker.AlreadyLocked as error:
        file.close()
        raise UserError(busy) from error
