"""Numbers as answers write them."""

from __future__ import annotations

from typing import Any


def numbers(row: Any) -> list[float] | None:
    """Numbers that are short in writing; nothing where there are none."""
    return None if row is None else [round(float(number), 4) for number in row]
