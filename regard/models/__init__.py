"""The papers' models: encoders, decoders, losses, and the registry that builds a model from a recipe."""

from regard.models.base import AlignmentHead, Decoded, Decoder, Encoded, Encoder, Model, Seq2Seq, log_probs
from regard.models.classifier import Classifier, ClassifierOutput
from regard.models.losses import CrossEntropy, LossSettings
from regard.models.registry import MODELS, build, build_on_meta

__all__ = [
    "MODELS",
    "AlignmentHead",
    "Classifier",
    "ClassifierOutput",
    "CrossEntropy",
    "Decoded",
    "Decoder",
    "Encoded",
    "Encoder",
    "LossSettings",
    "Model",
    "Seq2Seq",
    "build",
    "build_on_meta",
    "log_probs",
]
