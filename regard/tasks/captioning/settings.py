"""The `data` section of a recipe that captions."""

from __future__ import annotations

from dataclasses import dataclass

from regard.data.settings import ReadingSettings
from regard.tasks.captioning.backbone import Backbone


@dataclass(frozen=True, kw_only=True)
class CaptionSettings(ReadingSettings):
    """Which images are trained on, and how they are cut into places."""

    image: int = 224
    patch: int = 16
    features: int | None = None
    backbone: Backbone | None = None
    max_length: int = 50
    dev_pairs: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("image", "patch", "features", "max_length", "dev_pairs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is at least 1, not {value}")
        if self.patch > self.image:
            raise ValueError(f"patch is a part of an image of {self.image} pixels, not {self.patch}")
