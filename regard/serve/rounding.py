"""Numbers and JSON as answers write them."""

from __future__ import annotations

import json
from typing import Any


def numbers(row: Any) -> list[float] | None:
    """Numbers that are short in writing; nothing where there are none."""
    return None if row is None else [round(float(number), 4) for number in row]


def encode_json(value: Any) -> bytes:
    """Write an answer as Starlette's JSONResponse does, but row by row: no other thread runs while one is written."""
    return _to_json(value).encode("utf-8")


def _to_json(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_to_json(str(name))}:{_to_json(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list | tuple) and any(isinstance(part, dict | list | tuple) for part in value):
        return "[" + ",".join(map(_to_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
