"""Whether a module may be stood in for: what a faster way does in its place, nobody who listens to it would hear."""

from __future__ import annotations

from inspect import isfunction

from torch import nn
from torch.nn.modules.module import _has_any_global_hook

USUAL = vars(nn.Module()).keys()  # what every module has for itself


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
    own = vars(part)
    return any(isfunction(getattr(type(part), name, None)) for name in own.keys() - USUAL)


def rate(dropout: nn.Dropout) -> float:
    """What it drops now: each is in training, or not, by itself."""
    return dropout.p if dropout.training else 0.0
