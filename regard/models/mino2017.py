"""Mino et al. 2017, Key-value attention mechanism for neural machine translation.

Scores are computed from keys, contexts from values. The decoder is Bahdanau's. The paper's own equations of the split
were not available, so this follows its abstract: one projection of the annotations split in two, or two projections.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from regard.models.bahdanau2015 import BahdanauDecoder, BahdanauSettings, init_paper_
from regard.models.base import CrossEntropy, Encoded, Encoder, Seq2Seq
from regard.models.rnn_common import RecurrentEncoder
from regard.nn import Memory


@dataclass(frozen=True, kw_only=True)
class MinoSettings(BahdanauSettings):
    """The `model` section of `mino2017`."""

    key_value: Literal["split", "separate"] = "split"

    def __post_init__(self) -> None:
        if self.key_value == "split" and self.size % 2:
            raise ValueError(f"size must be even to be split into key and value, not {self.size}")

    @property
    def memory_size(self) -> int:
        """Width of a key, and of a value."""
        return self.size // 2 if self.key_value == "split" else self.size


class KeyValueEncoder(Encoder):
    """Encoder whose annotations are split into keys and values by one linear map.

    Two separate projections are implemented as one of twice the width.
    """

    def __init__(self, settings: MinoSettings, source_size: int) -> None:
        super().__init__()
        # This order decides the weights of a seed.
        project = nn.Linear(settings.annotation_size, 2 * settings.memory_size, bias=False)
        self.encoder = RecurrentEncoder(settings, source_size)
        self.project = project

    def forward(self, source: Tensor, lengths: Tensor) -> Encoded:
        """Encode source ids (B, S) as keys and values, each half as wide as the projection."""
        encoded: Encoded = self.encoder(source, lengths)
        keys, values = self.project(encoded.memory.keys).chunk(2, -1)
        return Encoded(Memory(keys, values, encoded.memory.mask), encoded.state)


def build(settings: MinoSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> Seq2Seq:
    """Build the model from its settings."""
    model = Seq2Seq(KeyValueEncoder(settings, source_size), BahdanauDecoder(settings, target_size), criterion)
    if settings.initialisation == "paper":
        init_paper_(model)
    return model
