"""The cache folder, and file helpers: SHA-256 and fsync."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def find_cache_folder() -> Path:
    """Return `REGARD_CACHE`, or `regard` in the user's cache folder."""
    folder = os.environ.get("REGARD_CACHE")
    return Path(folder) if folder else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync_path(path: Path) -> None:
    """Wait until a file or folder is written to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
