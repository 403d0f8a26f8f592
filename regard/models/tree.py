"""Decoder states are trees of tensors: tuples, lists and mappings, with numbers and None that belong to no row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")


def select(tree: T, rows: Tensor) -> T:
    """The rows of every tensor in the tree, in the order given; a row may come twice.

    A tensor that stands in two places (keys that are the values, too) is selected once and stands in both again.
    """
    done: dict[int, Tensor] = {}

    def chosen(branch: Any) -> Any:
        if isinstance(branch, Tensor):
            if id(branch) not in done:
                done[id(branch)] = branch.index_select(0, rows)
            return done[id(branch)]
        if hasattr(branch, "_fields"):
            return type(branch)(*map(chosen, branch))
        if isinstance(branch, list | tuple):
            return type(branch)(map(chosen, branch))
        if isinstance(branch, Mapping):
            return {key: chosen(value) for key, value in branch.items()}
        if branch is None or isinstance(branch, int | float | str):
            return branch
        raise TypeError(
            f"a decoder's state is made of tensors, tuples, lists and mappings, not {type(branch).__name__}"
        )

    return chosen(tree)  # type: ignore[no-any-return]
