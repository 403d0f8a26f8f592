"""Word links of a sentence pair, and how they are written."""

from __future__ import annotations

from collections.abc import Iterable

Link = tuple[int, int]  # source word, target word, from 0


def pharaoh(links: Iterable[Link]) -> str:
    """Links as `0-0 1-2`, in order."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))
