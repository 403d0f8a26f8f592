"""Eligibility of a model for fast paths: unmodified modules without hooks, whole weights, a supported dtype.

A fast path does not call the modules that it replaces, so their hooks would not run and overridden methods would have
no effect.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence
from functools import cache, lru_cache
from inspect import isfunction
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from regard.models.vaswani2017 import DecoderLayer, EncoderLayer, FeedForward, PostNorm, PreNorm, TransformerEmbedding
from regard.nn import LearnedPositions, MultiHeadAttention, NoPositions, SinusoidalPositions

KNOWN = {
    *(EncoderLayer, DecoderLayer, MultiHeadAttention, FeedForward, PreNorm, PostNorm),
    *(nn.ModuleList, nn.Linear, nn.LayerNorm, nn.ReLU, nn.Dropout, nn.Identity),
}
EMBEDDING_PARTS = {TransformerEmbedding, nn.Embedding, nn.Dropout, SinusoidalPositions, LearnedPositions, NoPositions}


def wanted() -> bool:
    """Return False if the environment variable REGARD_FAST is 0."""
    return os.environ.get("REGARD_FAST", "1") != "0"


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


# Attributes of modules that CUDA graphs, and what is laid out for them, contain as constants.
BAKED_IN = (
    *("eps", "heads", "size", "scale", "padding_idx"),
    *("sigma", "offsets", "form", "reverse", "residual", "input_feeding", "readout", "settings"),
)


class Held(NamedTuple):
    """The modules and weights of a model, and the constants that graphs contain."""

    parts: list[nn.Module | None]
    kinds: list[type[nn.Module]]
    weights: list[tuple[int, int]]  # which, and where its numbers are
    constants: list[Any]


class Outline:
    """The modules of a model, where its weights are, and the constants that its modules compute with.

    To walk over them anew takes a millisecond, a twentieth of an update; to look at each where it was, much less.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules = list(model.modules())
        self.branches = [module._modules for module in self.modules if module._modules]
        self.leaves = [module._parameters for module in self.modules if module._parameters]
        self.dropouts = [module for module in self.modules if isinstance(module, nn.Dropout)]
        self.weights = list(model.parameters())
        self.constants = named_constants(self.modules)
        self.before = self.held()

    def fits(self, model: nn.Module) -> bool:
        """Whether it is this model, and no module, weight or constant has taken another's place."""
        return model is self.modules[0] and self.before == self.held()

    def held(self) -> Held:
        """The modules' content now."""
        parts = [part for branch in self.branches for part in branch.values()]
        weights = [weight for leaf in self.leaves for weight in leaf.values() if weight is not None]
        places = [(id(weight), weight.data_ptr()) for weight in weights]
        return Held(parts, list(map(type, self.modules)), places, [own.get(name) for own, name in self.constants])


def named_constants(modules: Iterable[nn.Module]) -> list[tuple[dict[str, Any], str]]:
    """The attributes of modules, and the name in them, of each constant."""
    return [(vars(module), name) for module in modules for name in BAKED_IN if name in vars(module)]


def constants(modules: Iterable[nn.Module]) -> tuple[Hashable, ...]:
    """The constants that a CUDA graph of these modules contains, as a part of its key."""
    return tuple(own[name] for own, name in named_constants(modules))


def here(weights: Sequence[Tensor]) -> bool:
    """Whether a model's are on a CPU, whole, not in parts among processes, and in single precision at the least."""
    wide = weights[0].dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return whole(weights) and wide and weights[0].device.type == "cpu"


def takes(weights: Sequence[Tensor]) -> bool:
    """Whether all are here whole, and counted with as kernels do."""
    return whole(weights) and precision(weights[0]) in (torch.float32, torch.bfloat16)


def whole(weights: Sequence[Tensor]) -> bool:
    """Whether none is in parts among processes."""
    return all(type(weight) is nn.Parameter for weight in weights)


def precision(weight: Tensor) -> torch.dtype:
    """What matrix products with a weight are to be counted in."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
