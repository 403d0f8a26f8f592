"""Eligibility of a model for fast paths: unmodified modules without hooks, whole weights, a supported dtype.

A fast path does not call the modules that it replaces, so their hooks would not run and overridden methods would have
no effect.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence
from functools import cache, lru_cache
from inspect import isfunction
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from regard.models.base import Seq2Seq
from regard.models.vaswani2017 import (
    ACTIVATIONS,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Residual,
    TransformerDecoder,
    TransformerEmbedding,
    TransformerEncoder,
)
from regard.nn import LearnedPositions, MultiHeadAttention, NoPositions, SinusoidalPositions

TRANSFORMER_MODULES = {
    *(EncoderLayer, DecoderLayer, MultiHeadAttention, FeedForward, Residual),
    *(nn.ModuleList, nn.Linear, nn.LayerNorm, nn.Dropout, nn.Identity, *ACTIVATIONS.values()),
}
KNOWN_MODULES = {
    *(*TRANSFORMER_MODULES, TransformerEncoder, TransformerDecoder),
    *(TransformerEmbedding, nn.Embedding, SinusoidalPositions, LearnedPositions, NoPositions),
}
OUTER_MODULES: dict[str, type[nn.Module]] = {
    "": Seq2Seq,
    "encoder": TransformerEncoder,
    "decoder": TransformerDecoder,
    "encoder.embedding": TransformerEmbedding,
    "decoder.embedding": TransformerEmbedding,
}


def find_transformer_obstacle(model: nn.Module) -> str | None:
    """Return why this is not an unmodified Transformer of the recipes, or None; hooks are not considered."""
    for path, kind in OUTER_MODULES.items():
        part = model.get_submodule(path)
        if type(part) is not kind:
            return f"{path or 'the model'} is of class {type(part).__name__}"
    parts = dict(chain(*(model.get_submodule(side).named_modules(prefix=side) for side in ("encoder", "decoder"))))
    unknown = next((path for path, part in parts.items() if type(part) not in KNOWN_MODULES), None)
    if unknown is not None:
        return f"{unknown} is of class {type(parts[unknown]).__name__}"
    is_mixed = len({part.is_pre_norm for part in parts.values() if isinstance(part, Residual)}) > 1
    return "it has both pre-norm and post-norm layers" if is_mixed else None


def fast_paths_enabled() -> bool:
    """Return False if the environment variable REGARD_FAST is 0."""
    return os.environ.get("REGARD_FAST", "1") != "0"


def has_hooks_or_overrides(*modules: nn.Module) -> bool:
    """Return whether a module has hooks, its own methods, or a patched class."""
    has_global_hook: bool = _has_any_global_hook()  # type: ignore[no-untyped-call]
    changed = [  # a list is twice as fast as a generator, and this runs for all modules before each batch
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or not method_names(type(module)).isdisjoint(vars(module))  # type: ignore[arg-type]  # a class has a hash
        for module in modules
    ]
    return has_global_hook or any(changed) or any(map(is_patched, set(map(type, modules))))


class HookMonitor:
    """Repeated `has_hooks_or_overrides` for the same modules: the dictionaries to check are looked up once."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = modules
        hook_attributes = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        self.hooks = [getattr(module, name) for module in modules for name in hook_attributes]
        self.attributes = [vars(module) for module in modules]
        self.methods = [(vars(base), name) for cls in set(map(type, modules)) for base, name in list_class_methods(cls)]
        self.unmodified = None if has_hooks_or_overrides(*modules) else self._take_snapshot()

    def has_hooks_or_overrides(self) -> bool:
        """Return whether a module has hooks, its own methods, or a patched class."""
        has_global_hook: bool = _has_any_global_hook()  # type: ignore[no-untyped-call]
        is_unmodified = not any(self.hooks) and self._take_snapshot() == self.unmodified
        return has_global_hook or (not is_unmodified and has_hooks_or_overrides(*self.modules))

    def _take_snapshot(self) -> tuple[list[Any], ...]:
        """Return number and last name of each module's attributes, where a new method would be, and class functions."""
        last_names = list(map(next, map(reversed, self.attributes)))
        functions = [attributes.get(name) for attributes, name in self.methods]
        return list(map(len, self.attributes)), last_names, functions


@cache
def method_names(cls: type[object]) -> frozenset[str]:
    """Return the names of the methods of a class, cached because every batch asks for them."""
    return frozenset(name for name in dir(cls) if isfunction(getattr(cls, name, None)))


@cache
def list_class_methods(cls: type[nn.Module]) -> list[tuple[type[nn.Module], str]]:
    """List (class, name) of the methods that a class inherits from regard or PyTorch, except for those of nn.Module."""
    bases = [base for base in cls.__mro__ if issubclass(base, nn.Module) and base is not nn.Module]
    own_bases = [base for base in bases if base.__module__.split(".")[0] in ("regard", "torch")]
    return [(base, name) for base in own_bases for name, value in vars(base).items() if isfunction(value)]


def is_patched(cls: type[nn.Module]) -> bool:
    """Return True if a method of a class is not the one that its class statement defines."""
    methods = list_class_methods(cls)  # type: ignore[arg-type]  # a class has a hash
    return _are_patched(cls, tuple(vars(base).get(name) for base, name in methods))  # type: ignore[arg-type]


@lru_cache(maxsize=1000)  # called for each class before each batch
def _are_patched(cls: type[nn.Module], functions: tuple[object, ...]) -> bool:
    for (base, name), function in zip(list_class_methods(cls), functions, strict=True):  # type: ignore[arg-type]
        defined = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
        if defined != (base.__module__, f"{base.__qualname__}.{name}") or hasattr(function, "__wrapped__"):
            return True
    return False


def dropout_rate(dropout: nn.Dropout) -> float:
    """Return the effective rate of a dropout module, 0 in evaluation mode."""
    return dropout.p if dropout.training else 0.0


# Module attributes that CUDA graphs, and the data prepared for them, contain as constants.
GRAPH_CONSTANTS = (
    *("eps", "heads", "size", "scale", "padding_idx", "is_pre_norm"),
    *("sigma", "offsets", "form", "reverse", "residual", "input_feeding", "readout", "settings"),
)


class ModelFingerprint:
    """Modules, weight addresses and constants of a model, to detect replaced ones before each batch and search.

    Walking over all modules takes a millisecond, a twentieth of an update; comparing with remembered ones takes much
    less.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules = list(model.modules())
        self.module_dicts = [module._modules for module in self.modules if module._modules]
        self.parameter_dicts = [module._parameters for module in self.modules if module._parameters]
        self.dropouts = [module for module in self.modules if isinstance(module, nn.Dropout)]
        self.weights = list(model.parameters())
        self.constants = find_constants(self.modules)
        self.snapshot = self.take_snapshot()

    def matches(self, model: nn.Module) -> bool:
        """Return whether it is the same model, and no module, weight or constant was replaced."""
        return model is self.modules[0] and self.snapshot == self.take_snapshot()

    def take_snapshot(self) -> tuple[list[Any], ...]:
        """Return the current modules, their classes, identities and addresses of the weights, and constants."""
        modules = [module for branch in self.module_dicts for module in branch.values()]
        weights = [weight for leaf in self.parameter_dicts for weight in leaf.values() if weight is not None]
        addresses = [(id(weight), weight.data_ptr()) for weight in weights]
        constants = [attributes.get(name) for attributes, name in self.constants]
        return modules, list(map(type, self.modules)), addresses, constants


def find_constants(modules: Iterable[nn.Module]) -> list[tuple[dict[str, Any], str]]:
    """Return (module attributes, name) of each constant that a CUDA graph contains."""
    return [(vars(module), name) for module in modules for name in GRAPH_CONSTANTS if name in vars(module)]


def constants_key(modules: Iterable[nn.Module]) -> tuple[Hashable, ...]:
    """Return the values of these constants, as a part of a cache key."""
    return tuple(attributes[name] for attributes, name in find_constants(modules))


def is_cpu_model(weights: Sequence[Tensor]) -> bool:
    """Return whether all weights are unsharded, on a CPU, and computed with in fp32 or fp64."""
    wide = weights[0].dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return is_unsharded(weights) and wide and weights[0].device.type == "cpu"


def has_kernel_dtype(weights: Sequence[Tensor]) -> bool:
    """Return whether all weights are unsharded, and computed with in fp32 or bf16."""
    return is_unsharded(weights) and compute_dtype(weights[0]) in (torch.float32, torch.bfloat16)


def is_unsharded(weights: Sequence[Tensor]) -> bool:
    """Return whether no weight is sharded over processes."""
    return all(type(weight) is nn.Parameter for weight in weights)


def compute_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype of matrix products with a weight: that of autocast, or its own."""
    cls = weight.device.type
    return torch.get_autocast_dtype(cls) if torch.is_autocast_enabled(cls) else weight.dtype
