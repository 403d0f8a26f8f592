"""Whether a module may be stood in for: what a faster way does in its place, nobody who listens to it would hear."""

from __future__ import annotations

from functools import cache
from inspect import isfunction

from torch import nn
from torch.nn.modules.module import _has_any_global_hook


def heard(*parts: nn.Module) -> bool:
    """Whether somebody listens to what one of these is given or gives, or has it do something else."""
    everybody: bool = _has_any_global_hook()  # type: ignore[no-untyped-call]
    return everybody or any(
        part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        or changed(part)
        for part in parts
    )


def changed(part: nn.Module) -> bool:
    """Whether a module has a method of its own in the place of its class's."""
    return not methods(type(part)).isdisjoint(vars(part))  # type: ignore[arg-type]  # a class has a hash


@cache
def methods(kind: type[object]) -> frozenset[str]:
    """The names of a class's methods. They are asked for with each batch, for each module, so they are kept."""
    return frozenset(name for name in dir(kind) if isfunction(getattr(kind, name, None)))


def rate(dropout: nn.Dropout) -> float:
    """What it drops now: each is in training, or not, by itself."""
    return dropout.p if dropout.training else 0.0
