"""Runs on disk: config, vocabularies, checkpoints, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.runs.run import Run

__all__ = ["Run"]


def __getattr__(name: str) -> Any:
    """Import `Run` on first use, so that listing runs does not load PyTorch."""
    if name == "Run":
        from regard.runs.run import Run

        return Run
    raise AttributeError(f"module 'regard.runs' has no attribute {name!r}")
