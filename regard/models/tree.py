"""Decoder states are trees of tensors: tuples and lists, with numbers and None that belong to no row."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")


def select(tree: T, rows: Tensor) -> T:
    """The rows of every tensor in the tree, in the order given; a row may come twice."""
    return _select(tree, rows)  # type: ignore[no-any-return]


def _select(tree: Any, rows: Tensor) -> Any:
    if isinstance(tree, Tensor):
        return tree.index_select(0, rows)
    if hasattr(tree, "_fields"):
        return type(tree)(*(_select(branch, rows) for branch in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(_select(branch, rows) for branch in tree)
    return tree
