"""Xu et al. 2015, Show, attend and tell, as it was made: sentences about images.

The decoders are those of `xu` and `hard`, whole; what they look at are the places of a grid.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.models.checks import not_negative
from regard.models.criterion import CrossEntropy
from regard.models.grid import GridSettings, grid_encoder
from regard.models.hard import HardDecoder, HardModel, HardParts
from regard.models.recurrent import score
from regard.models.seq2seq import Seq2Seq
from regard.models.xu import XuDecoder, XuModel, XuParts, parts
from regard.nn import Attention, Global, Hard


@dataclass(frozen=True, kw_only=True)
class SoftCaptionSettings(XuParts, GridSettings):
    """The `model` section of `xu2015-soft-caption`."""

    doubly_stochastic: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative(self, "doubly_stochastic")


@dataclass(frozen=True, kw_only=True)
class HardCaptionSettings(HardParts, GridSettings):
    """The `model` section of `xu2015-hard-caption`."""


def soft(settings: SoftCaptionSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> Seq2Seq:
    """Soft attention over places with `source_size` features."""
    how = score(settings, settings.size, settings.memory_size, settings.hidden)
    decoder = XuDecoder(*parts(settings, target_size, Attention(how, Global())))
    return XuModel(grid_encoder(settings, source_size), decoder, criterion, settings.doubly_stochastic)


def hard(settings: HardCaptionSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> Seq2Seq:
    """Hard attention over them."""
    how = score(settings, settings.size, settings.memory_size, settings.hidden)
    decoder = HardDecoder(*parts(settings, target_size, Attention(how, Hard())), settings)
    return HardModel(grid_encoder(settings, source_size), decoder, criterion, settings)
