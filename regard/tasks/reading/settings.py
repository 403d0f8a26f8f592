"""The `data` and `text` sections of a recipe that reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.data.settings import ReadingSettings


@dataclass(frozen=True, kw_only=True)
class ClozeSettings(ReadingSettings):
    """Which questions are trained on."""

    blank: str = "XXXXX"
    max_length: int = 2000
    dev_questions: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blank.split() != [self.blank]:
            raise ValueError(f"blank is one word, which stands for the word that was taken out, not {self.blank!r}")
        if self.max_length < 1 or self.dev_questions < 1:
            raise ValueError(
                f"max_length and dev_questions are at least 1, not {self.max_length} and {self.dev_questions}"
            )


@dataclass(frozen=True, kw_only=True)
class WordSettings:
    """How text becomes ids: an answer is a word, so that words are what is read."""

    kind: Literal["word"] = "word"
    vocabulary: int = 50000
    lowercase: bool = False

    def __post_init__(self) -> None:
        if self.vocabulary < 6:
            raise ValueError(f"vocabulary must hold more than the five special ids, not {self.vocabulary}")
