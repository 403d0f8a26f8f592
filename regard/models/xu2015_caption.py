"""Image captioning: Xu et al. 2015, Show, attend and tell, over the cells of an image grid.

The decoders are those of `xu2015` and `xu2015_hard`, unchanged; the encoder is that of `image_encoder`.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.config import NonNegativeFloat
from regard.models.base import Seq2Seq
from regard.models.image_encoder import ImageEncoder, ImageEncoderSettings
from regard.models.losses import CrossEntropy
from regard.models.rnn_common import build_score
from regard.models.xu2015 import XuBaseSettings, XuDecoder, XuModel
from regard.models.xu2015_hard import HardAttentionBaseSettings, HardAttentionDecoder, HardAttentionModel
from regard.nn import Attention, Global


@dataclass(frozen=True, kw_only=True)
class SoftCaptionSettings(XuBaseSettings, ImageEncoderSettings):
    """The `model` section of `xu2015-soft-caption`."""

    doubly_stochastic: NonNegativeFloat = 1.0


@dataclass(frozen=True, kw_only=True)
class HardCaptionSettings(HardAttentionBaseSettings, ImageEncoderSettings):
    """The `model` section of `xu2015-hard-caption`."""


def build_soft_caption(
    settings: SoftCaptionSettings, source_size: int, target_size: int, criterion: CrossEntropy
) -> Seq2Seq:
    """Build soft attention over grid cells with `source_size` features."""
    attention = Attention(build_score(settings, settings.memory_size), Global())
    decoder = XuDecoder(settings, target_size, attention)
    return XuModel(ImageEncoder(settings, source_size), decoder, criterion, settings.doubly_stochastic)


def build_hard_caption(
    settings: HardCaptionSettings, source_size: int, target_size: int, criterion: CrossEntropy
) -> Seq2Seq:
    """Build hard attention over grid cells with `source_size` features."""
    decoder = HardAttentionDecoder(settings, target_size)
    return HardAttentionModel(ImageEncoder(settings, source_size), decoder, criterion)
