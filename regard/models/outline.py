"""A model without its numbers: what it is made of, at no cost in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from regard.models.builder import build

FILLS = {"normal_", "uniform_", "zero_", "fill_"}


class Unfilled(TorchFunctionMode):
    """First weights are not drawn: on device meta there is nothing to fill, and PyTorch is slow to find that out."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(function, "__name__", "") in FILLS:
            return args[0] if args else (kwargs or {})["tensor"]
        return function(*args, **(kwargs or {}))


def outline(config: str | Mapping[str, Any], source_size: int, target_size: int) -> Any:
    """The model that `build` would give, with the names and shapes of its weights, on device meta."""
    with torch.device("meta"), Unfilled():
        return build(config, source_size, target_size)
