"""Lin et al. 2017, A structured self-attentive sentence embedding: a matrix with one row per attention hop.

Equations are those of the paper's section 2; the output is that of its appendix, a multi-layer perceptron.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from regard.config import Fraction, NonNegativeFloat, PositiveInt
from regard.models.classifier import Classifier, ClassifierOutput, ClassifierSettings
from regard.models.losses import CrossEntropy
from regard.nn import MaxPooling, MeanPooling, Recurrent, StructuredSelfAttention, prefix_mask


@dataclass(frozen=True, kw_only=True)
class LinSettings(ClassifierSettings):
    """The `model` section of `lin2017`."""

    cell: Literal["gru", "lstm", "elman"] = "lstm"
    attention: PositiveInt = 350
    hops: PositiveInt = 30
    penalty: NonNegativeFloat = 0.1
    mlp: PositiveInt = 2000
    word_dropout: Fraction = 0.0


class LinClassifier(Classifier):
    """H of a bidirectional LSTM (eq. 1–4), M = A H (eq. 6, 7), a perceptron over M, and the penalty on A (eq. 8).

    With mean or max pooling instead of attention, M is one row.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        recurrent: Recurrent,
        pooling: nn.Module,
        perceptron: nn.Module,
        criterion: CrossEntropy,
        penalty_coefficient: float,
        dropout: float,
    ) -> None:
        super().__init__(criterion)
        self.embedding = embedding
        self.recurrent = recurrent
        self.pooling = pooling
        self.perceptron = perceptron
        self.penalty_coefficient = penalty_coefficient
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor, lengths: Tensor) -> ClassifierOutput:
        """Return logits (B, L) and weights A (B, hops, S) for ids (B, S) with lengths (B,)."""
        H, _ = self.recurrent(self.dropout(self.embedding(ids)), lengths)
        M, weights = self.pooling(H, prefix_mask(lengths, ids.shape[1]))
        return ClassifierOutput(self.perceptron(M.flatten(1)), weights)

    def attention_penalty(self, output: ClassifierOutput) -> Tensor | float:
        """Return the coefficient times ‖A Aᵀ − I‖²_F (eq. 8), summed over the batch."""
        if output.weights is None or not self.penalty_coefficient:
            return 0.0
        return self.penalty_coefficient * StructuredSelfAttention.penalty(output.weights).sum()


def build(settings: LinSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> LinClassifier:
    """Build the model from its settings, for a vocabulary size and a number of labels."""
    recurrent = settings.make_encoder(settings.embedding_size)
    width = recurrent.output_size
    make_pooling: dict[str, Callable[[], nn.Module]] = {
        "attention": lambda: StructuredSelfAttention(width, settings.attention, settings.hops),
        "max": MaxPooling,
        "mean": MeanPooling,
    }
    rows = settings.hops if settings.pooling == "attention" else 1
    perceptron = nn.Sequential(
        nn.Dropout(settings.dropout),
        nn.Linear(rows * width, settings.mlp),
        nn.ReLU(),
        nn.Dropout(settings.dropout),
        nn.Linear(settings.mlp, target_size),
    )
    return LinClassifier(
        settings.make_word_embedding(source_size),
        recurrent,
        make_pooling[settings.pooling](),
        perceptron,
        criterion,
        settings.penalty,
        settings.word_dropout,
    )
