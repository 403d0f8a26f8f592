"""Where regard keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`REGARD_CACHE`, or `regard` in the user's folder for caches."""
    named = os.environ.get("REGARD_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"
