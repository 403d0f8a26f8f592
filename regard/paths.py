"""Where regard keeps what it can make again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def find_cache_folder() -> Path:
    """`REGARD_CACHE`, or `regard` in the user's folder for caches."""
    named = os.environ.get("REGARD_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"


def compute_sha256(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync_path(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
