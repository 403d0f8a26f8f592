"""Decoder states are trees of tensors: tuples, lists and mappings.

Numbers, None and modules (the attention that has prepared a memory) belong to no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard.nn import Memory

T = TypeVar("T")


def select(tree: T, rows: Tensor) -> T:
    """The rows of every tensor in the tree, in the order given; a row may come twice.

    A tensor that stands in two places (keys that are the values, too) is selected once and stands in both again.
    """
    return mapped(tree, lambda tensor: tensor.index_select(0, rows))


def widen(tree: T, width: int) -> T:
    """Every row so many times, one behind the other; they share the memories of their sources."""
    return in_memories(tree, lambda tensor: tensor.repeat_interleave(width, 0), lambda tensor: tensor)


def reorder(tree: T, rows: Tensor) -> T:
    """The rows in another order, in which each stays within its source: memories stay as they are."""
    return in_memories(tree, lambda tensor: tensor.index_select(0, rows), lambda tensor: tensor)


def keep(tree: T, rows: Tensor, sources: Tensor) -> T:
    """Some rows, and the memories of the sources, by their numbers, that are left."""
    return in_memories(
        tree, lambda tensor: tensor.index_select(0, rows), lambda tensor: tensor.index_select(0, sources)
    )


def in_memories(tree: T, change: Callable[[Tensor], Tensor], of_source: Callable[[Tensor], Tensor]) -> T:
    """The tree with every tensor changed; those of a memory in another way, but for what is covered."""

    def changed(memory: Memory) -> Memory:
        return mapped(memory._replace(covered=None), of_source)._replace(covered=mapped(memory.covered, change))

    return mapped(tree, change, changed)


def trim(tree: T, source: int) -> T:
    """Without the padding of memories, of which no row has more than `source` real positions."""

    def cut(memory: Memory) -> Memory:
        return mapped(memory, lambda tensor: tensor[:, :source])

    return mapped(tree, lambda tensor: tensor, cut)


def mapped(tree: T, change: Callable[[Tensor], Tensor], of_memory: Callable[[Memory], Memory] | None = None) -> T:
    """The tree with every tensor changed; or memories as wholes, in a way of their own."""
    done: dict[int, Tensor] = {}

    def changed(branch: Any) -> Any:
        if isinstance(branch, Tensor):
            if id(branch) not in done:
                done[id(branch)] = change(branch)
            return done[id(branch)]
        if of_memory is not None and isinstance(branch, Memory):
            return of_memory(branch)
        if hasattr(branch, "_fields"):
            return type(branch)(*map(changed, branch))
        if isinstance(branch, list | tuple):
            return type(branch)(map(changed, branch))
        if isinstance(branch, Mapping):
            return {key: changed(value) for key, value in branch.items()}
        if branch is None or isinstance(branch, int | float | str | nn.Module):
            return branch
        raise TypeError(
            f"a decoder's state is made of tensors, tuples, lists and mappings, not {type(branch).__name__}"
        )

    return changed(tree)  # type: ignore[no-any-return]


def join(first: T, second: T) -> T:
    """The rows of one tree, then those of another that is made like it.

    The shorter of two tensors is padded behind with zeros. A number that is the same for all rows stays one; where the
    two trees have different ones, it becomes a tensor with one for each row.
    """
    done: dict[tuple[int, int], Tensor] = {}

    def joined(one: Any, other: Any) -> Any:
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            key = id(one), id(other)
            if key not in done:
                done[key] = stacked(one, other)
            return done[key]
        if isinstance(one, int) and isinstance(other, int) and one == other:
            return one
        if isinstance(one, int | Tensor) and isinstance(other, int | Tensor):
            return torch.cat([each_row(first, one), each_row(second, other)])
        if hasattr(one, "_fields"):
            return type(one)(*map(joined, one, other))
        if isinstance(one, list | tuple):
            return type(one)(map(joined, one, other))
        if isinstance(one, Mapping):
            return {key: joined(one[key], other[key]) for key in one}
        if one is other:  # None, or a module
            return one
        raise TypeError(f"states of {type(one).__name__} and {type(other).__name__} cannot be joined")

    return joined(first, second)  # type: ignore[no-any-return]


def rowwise(tree: T) -> T:
    """The tree with a number for each row where it has one for all of them."""

    def spread(branch: Any) -> Any:
        if isinstance(branch, int):
            return each_row(tree, branch)
        if branch is None or isinstance(branch, Tensor | nn.Module):
            return branch
        if hasattr(branch, "_fields"):
            return type(branch)(*map(spread, branch))
        if isinstance(branch, list | tuple):
            return type(branch)(map(spread, branch))
        return {key: spread(value) for key, value in branch.items()}

    return spread(tree)  # type: ignore[no-any-return]


def each_row(tree: Any, number: int | Tensor) -> Tensor:
    """A number for each row of a tree, where it may be one for all of them; memories may have fewer rows."""
    most = max(leaves(tree), key=lambda leaf: leaf.shape[0])
    return torch.as_tensor(number, device=most.device).expand(most.shape[0])


def stacked(first: Tensor, second: Tensor) -> Tensor:
    """Rows B,… and C,… as B+C,…; where the second dimensions differ, the shorter is padded behind with zeros."""
    if first.dim() < 2 or first.shape[1] == second.shape[1]:
        return torch.cat((first, second))
    rows, size = len(first), max(first.shape[1], second.shape[1])
    both = first.new_zeros(rows + len(second), size, *first.shape[2:])
    both[:rows, : first.shape[1]] = first
    both[rows:, : second.shape[1]] = second
    return both


def leaves(tree: Any) -> Iterator[Tensor]:
    """The tensors of a tree."""
    return (tensor for _, tensor in named(tree))


def named(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a tree, each by the way to it: `memory.keys`, `recurrent.0.1`."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, list | tuple | Mapping):
        names = getattr(tree, "_fields", None) or (tree if isinstance(tree, Mapping) else range(len(tree)))
        branches = tree.values() if isinstance(tree, Mapping) else tree
        for name, branch in zip(names, branches, strict=True):
            yield from named(branch, f"{path}.{name}" if path else str(name))
