"""Mino et al. 2017, Key-value attention mechanism for neural machine translation.

Keys say where to look, values what is seen there. The decoder is Bahdanau's; the paper's own equations of the split are
not at hand, so this follows its abstract: one projection of the annotations cut in two, or two projections.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from regard.models.bahdanau2015 import BahdanauSettings, build_from_encoder
from regard.models.base import Encoded, Encoder, Seq2Seq
from regard.models.losses import CrossEntropy
from regard.models.rnn_common import build_encoder
from regard.nn import Memory


@dataclass(frozen=True, kw_only=True)
class MinoSettings(BahdanauSettings):
    """The `model` section of `mino2017`."""

    key_value: Literal["split", "separate"] = "split"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key_value == "split" and self.size % 2:
            raise ValueError(f"size must be even to be split into key and value, not {self.size}")


class KeyValueEncoder(Encoder):
    """An encoder whose annotations are taken apart into keys and values by one linear map."""

    def __init__(self, encoder: Encoder, project: nn.Linear) -> None:
        super().__init__()
        self.encoder = encoder
        self.project = project

    def forward(self, source: Tensor, lengths: Tensor) -> Encoded:
        """Source B,S -> keys and values, each half of the projection wide."""
        encoded: Encoded = self.encoder(source, lengths)
        keys, values = self.project(encoded.memory.keys).chunk(2, -1)
        return Encoded(Memory(keys, values, encoded.memory.mask), encoded.state)


def build(settings: MinoSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> Seq2Seq:
    """The model of the settings. Two separate projections are one of twice the width."""
    width = settings.size // 2 if settings.key_value == "split" else settings.size
    project = nn.Linear(settings.memory_size, 2 * width, bias=False)
    reader = KeyValueEncoder(build_encoder(settings, source_size), project)
    return build_from_encoder(settings, reader, width, width, target_size, criterion)
