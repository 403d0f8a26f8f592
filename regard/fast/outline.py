"""Whether a model still is what it was: asked before each batch and each search, so it must take no time."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from torch import nn

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
