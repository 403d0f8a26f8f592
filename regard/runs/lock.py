"""One process at a time writes into a run's folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import portalocker

from regard.errors import UserError


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Nobody else trains into the folder meanwhile. The system lets go of it, however this process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as lock:
        try:
            portalocker.lock(lock, portalocker.LOCK_EX | portalocker.LOCK_NB)
        except portalocker.AlreadyLocked as error:
            raise UserError(
                f"another process is training into {folder}; wait for it, or choose another --out"
            ) from error
        yield
