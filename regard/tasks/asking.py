"""What is asked of a model from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def several(inputs: Sequence[T], kind: str) -> Sequence[T]:
    """The same inputs, if they are several, and not one that would be taken apart letter by letter."""
    if isinstance(inputs, str | bytes | Mapping):
        raise TypeError(f"predict takes a list of {kind}s, not one: predict([{kind}])")
    return inputs
