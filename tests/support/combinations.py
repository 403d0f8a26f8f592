"""Parametrisation by covering arrays: `make test` runs a few combinations, `make test-slow` the rest of the product."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest


def covering_pairs(*factors: Sequence[Any]) -> list[Any]:
    """Return the product of the factors; any two values of two factors meet in a parameter that is not slow."""
    return _cover(factors, min(2, len(factors)))


def each_value(*factors: Sequence[Any]) -> list[Any]:
    """Return the product of the factors; each value of each factor occurs in a parameter that is not slow."""
    return _cover(factors, 1)


def slow_after(count: int, values: Sequence[Any]) -> list[Any]:
    """Return the values of one parameter, or tuples of several; those after the first `count` are marked slow."""
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*row, marks=[pytest.mark.slow] * (index >= count)) for index, row in enumerate(rows)]


def _cover(factors: Sequence[Sequence[Any]], strength: int) -> list[Any]:
    """Return every combination as a `pytest.param`, those outside a greedy covering array marked slow."""
    rows = list(product(*(range(len(factor)) for factor in factors)))
    subsets = {row: set(combinations(enumerate(row), strength)) for row in rows}
    missing = set().union(*subsets.values())
    chosen = set()
    while missing:
        best = max(rows, key=lambda row: len(missing & subsets[row]))
        chosen.add(best)
        missing -= subsets[best]
    return [
        pytest.param(
            *(factor[index] for factor, index in zip(factors, row, strict=True)),
            marks=[pytest.mark.slow] * (row not in chosen),
        )
        for row in rows
    ]
