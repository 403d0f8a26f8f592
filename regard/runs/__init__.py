"""Runs on disk: config, vocabularies, checkpoints, metrics."""

from regard.runs.run import Run, choose_inference_device

__all__ = ["Run", "choose_inference_device"]
