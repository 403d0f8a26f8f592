"""Files that nobody else on the machine may read."""

from __future__ import annotations

import os
from pathlib import Path

OWN = 0o600


def write_private(path: Path, content: bytes = b"") -> None:
    """A new file of its own, from the first byte on; one that is there already is an error."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), OWN), "wb") as file:
        file.write(content)
