"""Runs on disk: config, vocabularies, checkpoints, metrics."""

from regard.runs.run import Run

__all__ = ["Run"]
