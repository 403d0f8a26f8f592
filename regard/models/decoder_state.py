"""Operations on decoder states (select, expand, reorder, concatenate, trim), which are trees of tensors.

Nodes are tuples, lists and mappings. Numbers, None and modules (the attention that prepared a memory) are leaves
without a batch dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn import Memory

T = TypeVar("T")


def select(state: T, rows: Tensor) -> T:
    """Return the given rows of every tensor, in the given order; a row may occur twice.

    A tensor that occurs twice in the tree, such as keys that are also the values, is selected once and stays shared.
    """
    return map_tensors(state, lambda tensor: tensor.index_select(0, rows))


def expand_beams(state: T, width: int) -> T:
    """Repeat each row `width` times, consecutively; the copies share the memory of their source."""
    return _map_state_and_memory(state, lambda tensor: tensor.repeat_interleave(width, 0), lambda tensor: tensor)


def reorder_beams(state: T, rows: Tensor) -> T:
    """Reorder the rows; each stays within its source, so memories do not change."""
    return _map_state_and_memory(state, lambda tensor: tensor.index_select(0, rows), lambda tensor: tensor)


def keep_rows(state: T, rows: Tensor, sources: Tensor) -> T:
    """Keep the given rows, and the memories of the given sources."""
    return _map_state_and_memory(
        state, lambda tensor: tensor.index_select(0, rows), lambda tensor: tensor.index_select(0, sources)
    )


def _map_state_and_memory(
    state: T, tensor_fn: Callable[[Tensor], Tensor], memory_tensor_fn: Callable[[Tensor], Tensor]
) -> T:
    """Apply one function to state tensors and coverage, another to the other tensors of memories."""

    def apply_to_memory(memory: Memory) -> Memory:
        mapped = map_tensors(memory._replace(coverage=None), memory_tensor_fn)
        return mapped._replace(coverage=map_tensors(memory.coverage, tensor_fn))

    return map_tensors(state, tensor_fn, apply_to_memory)


def trim_padding(state: T, source_length: int) -> T:
    """Trim all memories to `source_length` positions."""

    def trim_memory(memory: Memory) -> Memory:
        return map_tensors(memory, lambda tensor: tensor[:, :source_length])

    return map_tensors(state, lambda tensor: tensor, trim_memory)


def map_tensors(
    state: T, tensor_fn: Callable[[Tensor], Tensor], memory_fn: Callable[[Memory], Memory] | None = None
) -> T:
    """Apply a function to every tensor of the tree; with `memory_fn`, memories are passed to it as a whole."""
    results: dict[int, Tensor] = {}

    def apply(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            if id(leaf) not in results:
                results[id(leaf)] = tensor_fn(leaf)
            return results[id(leaf)]
        if memory_fn is not None and isinstance(leaf, Memory):
            return memory_fn(leaf)
        if leaf is None or isinstance(leaf, int | float | str | nn.Module):
            return leaf
        raise TypeError(f"a decoder's state is made of tensors, tuples, lists and mappings, not {type(leaf).__name__}")

    return _map_leaves(apply, memory_fn is not None, state)  # type: ignore[no-any-return]


def distinct_tensors(state: Any) -> dict[str, Tensor]:
    """Return the tensors of a state by name; a tensor that occurs twice has the first name."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, leaf in named_tensors(state):
        first.setdefault(id(leaf), (name, leaf))
    return dict(first.values())


def replace_distinct_tensors(state: T, new_tensors: Sequence[Tensor]) -> T:
    """Return a state of the same structure with other tensors, in the order of `distinct_tensors`."""
    indices = {id(leaf): index for index, leaf in enumerate(distinct_tensors(state).values())}
    return map_tensors(state, lambda leaf: new_tensors[indices[id(leaf)]])


def concat_states(first: T, second: T) -> T:
    """Concatenate the rows of two trees of the same structure.

    The shorter of two tensors is padded on the right with zeros. A number that is equal in both trees stays a number;
    if the two differ, it becomes a tensor with one value per row.
    """
    results: dict[tuple[int, int], Tensor] = {}

    def concat(one: Any, other: Any) -> Any:
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            key = id(one), id(other)
            if key not in results:
                results[key] = _pad_cat(one, other)
            return results[key]
        if one is other or (isinstance(one, int) and isinstance(other, int) and one == other):  # None or a module, too
            return one
        if isinstance(one, int | Tensor) and isinstance(other, int | Tensor):
            return torch.cat([expand_scalar(first, one), expand_scalar(second, other)])
        raise TypeError(f"states of {type(one).__name__} and {type(other).__name__} cannot be concatenated")

    return _map_leaves(concat, False, first, second)  # type: ignore[no-any-return]


def steps_per_row(state: T) -> T:
    """Replace numbers that apply to all rows, such as step indices, by tensors with one value per row."""

    def expand_steps(leaf: Any) -> Any:
        return expand_scalar(state, leaf) if isinstance(leaf, int) else leaf

    return _map_leaves(expand_steps, False, state)  # type: ignore[no-any-return]


def _map_leaves(function: Callable[..., Any], has_memory_leaves: bool, *trees: Any) -> Any:
    """Apply a function to the leaves of trees of the same structure, and return a tree of that structure."""
    tree = trees[0]
    if (has_memory_leaves and isinstance(tree, Memory)) or not isinstance(tree, tuple | list | Mapping):
        return function(*trees)
    if isinstance(tree, Mapping):
        return {key: _map_leaves(function, has_memory_leaves, *(one[key] for one in trees)) for key in tree}
    branches = [_map_leaves(function, has_memory_leaves, *branch) for branch in zip(*trees, strict=True)]
    return type(tree)(*branches) if hasattr(tree, "_fields") else type(tree)(branches)


def expand_scalar(state: Any, value: int | Tensor) -> Tensor:
    """Return one value per row of the state, given a number or a tensor; memories may have fewer rows."""
    largest = max(tensors(state), key=lambda leaf: leaf.shape[0])
    return torch.as_tensor(value, device=largest.device).expand(largest.shape[0])


def _pad_cat(first: Tensor, second: Tensor) -> Tensor:
    """Concatenate (B, …) and (C, …) to (B+C, …), right-padding the shorter second dimension with zeros."""
    if first.dim() < 2 or first.shape[1] == second.shape[1]:
        return torch.cat((first, second))
    size, inner = max(first.shape[1], second.shape[1]), (0, 0) * (first.dim() - 2)
    return torch.cat([F.pad(tensor, (*inner, 0, size - tensor.shape[1])) for tensor in (first, second)])


def tensors(state: Any) -> Iterator[Tensor]:
    """Yield the tensors of a tree."""
    return (tensor for _, tensor in named_tensors(state))


def named_tensors(state: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a tree with their paths, such as `memory.keys` or `recurrent.0.1`."""
    if isinstance(state, Tensor):
        yield path, state
    elif isinstance(state, list | tuple | Mapping):
        names = getattr(state, "_fields", None) or (state if isinstance(state, Mapping) else range(len(state)))
        branches = state.values() if isinstance(state, Mapping) else state
        for name, branch in zip(names, branches, strict=True):
            yield from named_tensors(branch, f"{path}.{name}" if path else str(name))
