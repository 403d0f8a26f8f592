"""The `data` and `text` sections of a recipe that tags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.data.settings import ReadingSettings

Column = int | str  # its number, from 1, or the name that CoNLL-U has for it


@dataclass(frozen=True, kw_only=True)
class TagDataSettings(ReadingSettings):
    """Which sentences are trained on, and which columns of a word's line are read."""

    label: Column | None = None
    inputs: tuple[Column, ...] | None = None
    max_length: int = 256
    dev_sentences: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length < 1 or self.dev_sentences < 1:
            raise ValueError(
                f"max_length and dev_sentences are at least 1, not {self.max_length} and {self.dev_sentences}"
            )
        inputs = self.inputs or ()
        if len(set(inputs)) < len(inputs) or self.label in inputs:
            raise ValueError(f"inputs are columns, each once, and not the label, not {list(inputs)}")


@dataclass(frozen=True, kw_only=True)
class TagTextSettings:
    """What is read of a word."""

    kind: Literal["word"] = "word"
    vocabulary: int = 30000
    minimum: int = 2
    lowercase: bool = True
    suffix: int = 3
    shape: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.vocabulary < 1:
            raise ValueError(f"vocabulary must hold at least one word, not {self.vocabulary}")
        if self.minimum < 1:
            raise ValueError(f"minimum must be at least 1, not {self.minimum}")
        if not 0 <= self.suffix <= 20:
            raise ValueError(f"suffix must be from 0 to 20 letters, not {self.suffix}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is a probability below 1, not {self.dropout}")
