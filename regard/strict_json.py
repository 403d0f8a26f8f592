"""Strict JSON that every parser reads: NaN and infinities, which JSON cannot express, are written as null."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any


def dumps(value: Any, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """Return a value as JSON, with null for NaN and infinities.

    >>> dumps({"loss": float("nan"), "epoch": 0.5})
    '{"loss": null, "epoch": 0.5}'
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, default=default)
    except ValueError:
        return json.dumps(
            _replace_non_finite(value), ensure_ascii=False, allow_nan=False, indent=indent, default=default
        )


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_non_finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
