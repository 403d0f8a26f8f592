"""States of decoders as the lists of tensors that graphs take and give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.models import decoder_state

ENCODER, STEP = "encoder.onnx", "step.onnx"
SHARED = "sources"  # what graphs call the rows of a tensor that the hypotheses of a source share
B, S, W = 2, 3, 4  # sizes to trace with, all different; 1 would be taken for one that never changes


def begun(model: Any, source: Tensor, lengths: Tensor) -> Any:
    """The state before the first token, with a step's number for each row."""
    return decoder_state.steps_per_row(model.decoder.start(model.encode(source, lengths)))


def distinct(state: Any) -> dict[str, Tensor]:
    """The tensors of a state by name; one that stands in two places has the first one's."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, leaf in decoder_state.named_tensors(state):
        first.setdefault(id(leaf), (name, leaf))
    return dict(first.values())


def filled(state: Any, leaves: Any) -> Any:
    """A state like this one, with other tensors."""
    return Mould(state).filled(leaves)


class Mould:
    """What a state is made like, to fill many times."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.names = list(distinct(state))
        self.places = {id(leaf): number for number, leaf in enumerate(distinct(state).values())}

    def filled(self, leaves: Sequence[Tensor]) -> Any:
        """Such a state of these tensors."""
        return decoder_state.map_tensors(self.state, lambda leaf: leaves[self.places[id(leaf)]])

    def spelt(self, named: Mapping[str, Tensor]) -> Any:
        """Such a state of tensors by their names."""
        return self.filled([named[name] for name in self.names])

    def named(self, state: Any) -> dict[str, Tensor]:
        """The tensors of such a state by their names; what stands in several places has one."""
        known = dict(decoder_state.named_tensors(state))
        return {name: known[name] for name in self.names}

    @cached_property
    def staying(self) -> set[str]:
        """The names of what rows of one source have in common: it stays when they change places."""
        moved = decoder_state.reorder_beams(self.state, torch.arange(B))
        both = zip(decoder_state.named_tensors(self.state), decoder_state.named_tensors(moved), strict=True)
        return {name for (name, before), (_, after) in both if before is after}


def sample(model: Any, places: int = S, written: int = W) -> Any:
    """A state to trace with: sources of so many places, and so many tokens behind it."""
    with torch.no_grad():
        state = begun(model, torch.full((B, places), 4), torch.full((B,), places))
        for _ in range(written):
            _, state, _ = model.decoder.step(state, torch.full((B,), 4))
    return state
