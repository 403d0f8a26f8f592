"""A run on disk."""

from regard.runs.run import Run

__all__ = ["Run"]
