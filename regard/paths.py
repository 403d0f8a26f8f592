"""The cache folder, and file helpers: SHA-256, fsync, atomic writes, JSON that every parser reads."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


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


def write_atomically(path: Path, text: str) -> None:
    """Write a text file that has, whenever the process may be killed, either its old or its new content."""
    partial_file = path.with_name(f".{path.name}.part")
    partial_file.write_text(text, encoding="utf-8")
    fsync_path(partial_file)
    partial_file.replace(path)
    fsync_path(path.parent)


def format_json(value: Any, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """Return a value as JSON, with null for NaN and infinities, which JSON cannot express.

    >>> format_json({"loss": float("nan"), "epoch": 0.5})
    '{"loss": null, "epoch": 0.5}'
    """
    dump = partial(json.dumps, ensure_ascii=False, allow_nan=False, indent=indent, default=default)
    try:
        return dump(value)
    except ValueError:
        return dump(_replace_non_finite(value))


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_non_finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
