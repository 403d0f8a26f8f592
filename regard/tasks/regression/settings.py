"""The `data` and `text` sections of a recipe for numbers over time."""

from __future__ import annotations

from dataclasses import dataclass

from regard.data.settings import ReadingSettings


@dataclass(frozen=True, kw_only=True)
class NumberSettings(ReadingSettings):
    """Which series are trained on, and how many of a line's numbers are read; those behind them are to be found."""

    inputs: int = 1
    max_length: int = 2000
    dev_series: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inputs < 1 or self.max_length < 1 or self.dev_series < 1:
            raise ValueError(
                "inputs, max_length and dev_series are at least 1, "
                f"not {self.inputs}, {self.max_length} and {self.dev_series}"
            )


@dataclass(frozen=True, kw_only=True)
class NoText:
    """Nothing: there is no text."""
