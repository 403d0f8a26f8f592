"""Decoders that look before they read a word: each step waits for the one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.nn import Attended, joined

Loop = Callable[[Any, Any, Tensor], tuple[Tensor, Attended]]


class Steps(Protocol):
    """A decoder that goes word by word."""

    def advance(self, state: Any, word: Tensor) -> tuple[Any, Attended, Tensor]:
        """One step on an embedded word: the new state, what was attended to, and what the output reads."""
        ...


def one_by_one(decoder: Steps, state: Any, words: Tensor) -> tuple[Tensor, Attended]:
    """Each step waits for the one before: words B,T,m -> what the output reads B,T,·, and the looks."""
    looks, read = [], []
    for word in words.unbind(1):
        state, attended, shown = decoder.advance(state, word)
        looks.append(attended)
        read.append(shown)
    return torch.stack(read, 1), joined(looks)
