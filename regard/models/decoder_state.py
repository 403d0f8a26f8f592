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


def select(state: T, rows: Tensor) -> T:
    """The rows of every tensor in the tree, in the order given; a row may come twice.

    A tensor that stands in two places (keys that are the values, too) is selected once and stands in both again.
    """
    return map_tensors(state, lambda tensor: tensor.index_select(0, rows))


def expand_beams(state: T, width: int) -> T:
    """Every row so many times, one behind the other; they share the memories of their sources."""
    return _map_state_and_memory(state, lambda tensor: tensor.repeat_interleave(width, 0), lambda tensor: tensor)


def reorder_beams(state: T, rows: Tensor) -> T:
    """The rows in another order, in which each stays within its source: memories stay as they are."""
    return _map_state_and_memory(state, lambda tensor: tensor.index_select(0, rows), lambda tensor: tensor)


def keep_rows(state: T, rows: Tensor, sources: Tensor) -> T:
    """Some rows, and the memories of the sources, by their numbers, that are left."""
    return _map_state_and_memory(
        state, lambda tensor: tensor.index_select(0, rows), lambda tensor: tensor.index_select(0, sources)
    )


def _map_state_and_memory(
    state: T, tensor_fn: Callable[[Tensor], Tensor], memory_tensor_fn: Callable[[Tensor], Tensor]
) -> T:
    """The tree with every tensor changed; those of a memory in another way, but for what is covered."""

    def apply_to_memory(memory: Memory) -> Memory:
        return map_tensors(memory._replace(coverage=None), memory_tensor_fn)._replace(
            coverage=map_tensors(memory.coverage, tensor_fn)
        )

    return map_tensors(state, tensor_fn, apply_to_memory)


def trim_padding(state: T, source_length: int) -> T:
    """Without the padding of memories, of which no row has more than `source` real positions."""

    def trim_memory(memory: Memory) -> Memory:
        return map_tensors(memory, lambda tensor: tensor[:, :source_length])

    return map_tensors(state, lambda tensor: tensor, trim_memory)


def map_tensors(
    state: T, tensor_fn: Callable[[Tensor], Tensor], memory_fn: Callable[[Memory], Memory] | None = None
) -> T:
    """The tree with every tensor changed; or memories as wholes, in a way of their own."""
    done: dict[int, Tensor] = {}

    def apply(branch: Any) -> Any:
        if isinstance(branch, Tensor):
            if id(branch) not in done:
                done[id(branch)] = tensor_fn(branch)
            return done[id(branch)]
        if memory_fn is not None and isinstance(branch, Memory):
            return memory_fn(branch)
        if hasattr(branch, "_fields"):
            return type(branch)(*map(apply, branch))
        if isinstance(branch, list | tuple):
            return type(branch)(map(apply, branch))
        if isinstance(branch, Mapping):
            return {key: apply(value) for key, value in branch.items()}
        if branch is None or isinstance(branch, int | float | str | nn.Module):
            return branch
        raise TypeError(
            f"a decoder's state is made of tensors, tuples, lists and mappings, not {type(branch).__name__}"
        )

    return apply(state)  # type: ignore[no-any-return]


def concat_states(first: T, second: T) -> T:
    """The rows of one tree, then those of another that is made like it.

    The shorter of two tensors is padded behind with zeros. A number that is the same for all rows stays one; where the
    two trees have different ones, it becomes a tensor with one for each row.
    """
    done: dict[tuple[int, int], Tensor] = {}

    def concat(first_branch: Any, second_branch: Any) -> Any:
        if isinstance(first_branch, Tensor) and isinstance(second_branch, Tensor):
            key = id(first_branch), id(second_branch)
            if key not in done:
                done[key] = _pad_cat(first_branch, second_branch)
            return done[key]
        if isinstance(first_branch, int) and isinstance(second_branch, int) and first_branch == second_branch:
            return first_branch
        if isinstance(first_branch, int | Tensor) and isinstance(second_branch, int | Tensor):
            return torch.cat([expand_scalar(first, first_branch), expand_scalar(second, second_branch)])
        if hasattr(first_branch, "_fields"):
            return type(first_branch)(*map(concat, first_branch, second_branch))
        if isinstance(first_branch, list | tuple):
            return type(first_branch)(map(concat, first_branch, second_branch))
        if isinstance(first_branch, Mapping):
            return {key: concat(first_branch[key], second_branch[key]) for key in first_branch}
        if first_branch is second_branch:  # None, or a module
            return first_branch
        raise TypeError(f"states of {type(first_branch).__name__} and {type(second_branch).__name__} cannot be joined")

    return concat(first, second)  # type: ignore[no-any-return]


def steps_per_row(state: T) -> T:
    """The tree with a number for each row where it has one for all of them."""

    def expand_steps(branch: Any) -> Any:
        if isinstance(branch, int):
            return expand_scalar(state, branch)
        if branch is None or isinstance(branch, Tensor | nn.Module):
            return branch
        if hasattr(branch, "_fields"):
            return type(branch)(*map(expand_steps, branch))
        if isinstance(branch, list | tuple):
            return type(branch)(map(expand_steps, branch))
        return {key: expand_steps(value) for key, value in branch.items()}

    return expand_steps(state)  # type: ignore[no-any-return]


def expand_scalar(state: Any, value: int | Tensor) -> Tensor:
    """A number for each row of a tree, where it may be one for all of them; memories may have fewer rows."""
    largest = max(tensors(state), key=lambda leaf: leaf.shape[0])
    return torch.as_tensor(value, device=largest.device).expand(largest.shape[0])


def _pad_cat(first: Tensor, second: Tensor) -> Tensor:
    """Rows B,… and C,… as B+C,…; where the second dimensions differ, the shorter is padded behind with zeros."""
    if first.dim() < 2 or first.shape[1] == second.shape[1]:
        return torch.cat((first, second))
    rows, size = len(first), max(first.shape[1], second.shape[1])
    both = first.new_zeros(rows + len(second), size, *first.shape[2:])
    both[:rows, : first.shape[1]] = first
    both[rows:, : second.shape[1]] = second
    return both


def tensors(state: Any) -> Iterator[Tensor]:
    """The tensors of a tree."""
    return (tensor for _, tensor in named_tensors(state))


def named_tensors(state: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a tree, each by the way to it: `memory.keys`, `recurrent.0.1`."""
    if isinstance(state, Tensor):
        yield path, state
    elif isinstance(state, list | tuple | Mapping):
        names = getattr(state, "_fields", None) or (state if isinstance(state, Mapping) else range(len(state)))
        branches = state.values() if isinstance(state, Mapping) else state
        for name, branch in zip(names, branches, strict=True):
            yield from named_tensors(branch, f"{path}.{name}" if path else str(name))
