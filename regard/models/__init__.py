"""The papers' models: encoders, decoders, and the recipes that put them together."""

from regard.models.builder import KINDS, build
from regard.models.classifier import Classified, Classifier
from regard.models.criterion import CrossEntropy, LossSettings
from regard.models.model import Model
from regard.models.outline import outline
from regard.models.seq2seq import Decoded, Decoder, Encoded, Encoder, Seq2Seq, Viewpoint, log_probs

__all__ = [
    "KINDS",
    "Classified",
    "Classifier",
    "CrossEntropy",
    "Decoded",
    "Decoder",
    "Encoded",
    "Encoder",
    "LossSettings",
    "Model",
    "Seq2Seq",
    "Viewpoint",
    "build",
    "log_probs",
    "outline",
]
