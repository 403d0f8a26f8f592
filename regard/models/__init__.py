"""The papers' models: encoders, decoders, losses, and the registry that builds a model from a recipe."""

from regard.models.base import Seq2Seq
from regard.models.registry import MODELS, build

__all__ = ["MODELS", "Seq2Seq", "build"]
