"""Whether a module may be stood in for: what a faster way does in its place, nobody who listens to it would hear."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from inspect import isfunction

from torch import nn
from torch.nn.modules.module import _has_any_global_hook


def heard(*parts: nn.Module) -> bool:
    """Whether somebody listens to what one of these is given or gives, or has it do something else."""
    everybody: bool = _has_any_global_hook()  # type: ignore[no-untyped-call]
    each = [  # a list takes half the time of a generator, and this is asked of all modules before each batch
        part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        or not methods(type(part)).isdisjoint(vars(part))  # type: ignore[arg-type]  # a class has a hash
        for part in parts
    ]
    return everybody or any(each) or any(map(is_patched, set(map(type, parts))))


class Listeners:
    """To the same parts, asked for again and again: where each keeps them is looked up once."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        self.parts = parts
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        self.hooks = [getattr(part, kind) for part in parts for kind in kinds]
        self.own = [vars(part) for part in parts]  # in which a method of its own would come last
        self.sizes, self.names = ([], []) if heard(*parts) else (list(map(len, self.own)), self.last_names())
        self.classes = [(vars(base), name) for kind in set(map(type, parts)) for base, name in class_methods(kind)]
        self.functions = self.class_functions()

    def heard(self) -> bool:
        """Whether somebody listens to one of them, or has it do something else."""
        everybody: bool = _has_any_global_hook()  # type: ignore[no-untyped-call]
        as_before = list(map(len, self.own)) == self.sizes and self.last_names() == self.names
        as_before = as_before and self.class_functions() == self.functions and not any(self.hooks)
        return everybody or (not as_before and heard(*self.parts))

    def last_names(self) -> list[str]:
        """The attribute of each part that was added last."""
        return list(map(next, map(reversed, self.own)))

    def class_functions(self) -> list[object]:
        """The methods of all classes."""
        return [own.get(name) for own, name in self.classes]


@cache
def methods(kind: type[object]) -> frozenset[str]:
    """The names of a class's methods, in whose place a module may have some of its own; kept, since they are asked for
    with each batch, for each module."""
    return frozenset(name for name in dir(kind) if isfunction(getattr(kind, name, None)))


@cache
def class_methods(kind: type[nn.Module]) -> list[tuple[type[nn.Module], str]]:
    """The methods that a class has from regard or PyTorch, each by the class that defines it, but for nn.Module's."""
    bases = [base for base in kind.__mro__ if issubclass(base, nn.Module) and base is not nn.Module]
    ours = [base for base in bases if base.__module__.split(".")[0] in ("regard", "torch")]
    return [(base, name) for base in ours for name, value in vars(base).items() if isfunction(value)]


def is_patched(kind: type[nn.Module]) -> bool:
    """Return True if a method of a class is not the one that its class statement defines."""
    found = class_methods(kind)  # type: ignore[arg-type]  # a class has a hash
    return _are_patched(kind, tuple(vars(base).get(name) for base, name in found))  # type: ignore[arg-type]


@lru_cache(maxsize=1000)  # called for each class before each batch
def _are_patched(kind: type[nn.Module], functions: tuple[object, ...]) -> bool:
    for (base, name), function in zip(class_methods(kind), functions, strict=True):  # type: ignore[arg-type]
        defined = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
        if defined != (base.__module__, f"{base.__qualname__}.{name}") or hasattr(function, "__wrapped__"):
            return True
    return False


def rate(dropout: nn.Dropout) -> float:
    """What it drops now: each is in training, or not, by itself."""
    return dropout.p if dropout.training else 0.0
