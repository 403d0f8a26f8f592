"""The `data` section of a recipe that classifies, and which models read sentence by sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard.data.settings import ReadingSettings
from regard.errors import UserError, nearest

BY_SENTENCE = {"lin": False, "yang": True}  # model.kind: whether it reads sentences, and not a text as one


@dataclass(frozen=True, kw_only=True)
class ClassificationSettings(ReadingSettings):
    """Which texts are trained on, and where a file has its labels."""

    label: int | str | None = None
    text: int | str | None = None
    header: bool | None = None
    language: str = "en"
    max_length: int = 400
    max_sentences: int = 40
    dev_pairs: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_length", "max_sentences", "dev_pairs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")
        for name in ("label", "text"):
            place = getattr(self, name)
            if place in (0, "") or (type(place) is int and place < 0):
                raise ValueError(f"{name} is a column's number, from 1, or its name, not {place!r}")
        if self.label is not None and self.label == self.text:
            raise ValueError(f"label and text are two columns, not both {self.label!r}")


def by_sentence(config: Mapping[str, Any]) -> bool:
    """Whether a recipe's model reads sentence by sentence."""
    kind = config["model"]["kind"]
    if kind not in BY_SENTENCE:
        raise UserError(f"a model of the kind {kind!r} does not classify{nearest(str(kind), BY_SENTENCE)}")
    return BY_SENTENCE[kind]
