"""Whether a model still is what it was: asked before each batch and each search, so it must take no time."""

from __future__ import annotations

from torch import nn


class Outline:
    """The modules of a model, and where its weights are.

    To walk over them anew takes a millisecond, a twentieth of an update; to look at each where it was, much less.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules = list(model.modules())
        self.branches = [module._modules for module in self.modules if module._modules]
        self.leaves = [module._parameters for module in self.modules if module._parameters]
        self.dropouts = [module for module in self.modules if isinstance(module, nn.Dropout)]
        self.weights = list(model.parameters())
        self.parts, self.places = self.held()

    def fits(self, model: nn.Module) -> bool:
        """Whether it is this model, and no module or weight has taken another's place."""
        return model is self.modules[0] and (self.parts, self.places) == self.held()

    def held(self) -> tuple[list[nn.Module | None], list[tuple[int, int]]]:
        """What the modules hold now: other modules, and which weights, with their numbers where."""
        parts = [part for branch in self.branches for part in branch.values()]
        weights = [weight for leaf in self.leaves for weight in leaf.values() if weight is not None]
        return parts, [(id(weight), weight.data_ptr()) for weight in weights]
