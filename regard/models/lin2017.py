"""Lin et al. 2017, A structured self-attentive sentence embedding: a matrix with one row per attention hop.

Equations are those of the paper's section 2; the output is that of its appendix, a multi-layer perceptron.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from regard.config import Fraction, NonNegativeFloat, PositiveInt
from regard.models.base import CrossEntropy
from regard.models.classifier import POOLING, Classifier, ClassifierOutput, ClassifierSettings
from regard.nn import StructuredSelfAttention, prefix_mask


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

    def __init__(self, settings: LinSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> None:
        super().__init__(criterion)
        recurrent = settings.make_encoder(settings.embedding_size)  # this order decides the weights of a seed
        width, has_attention = recurrent.output_size, settings.pooling == "attention"
        perceptron = nn.Sequential(
            nn.Dropout(settings.dropout),
            nn.Linear((settings.hops if has_attention else 1) * width, settings.mlp),
            nn.ReLU(),
            nn.Dropout(settings.dropout),
            nn.Linear(settings.mlp, target_size),
        )
        self.embedding = settings.make_embedding(source_size)
        self.recurrent = recurrent
        self.pooling = (
            StructuredSelfAttention(width, settings.attention, settings.hops)
            if has_attention
            else POOLING[settings.pooling]()
        )
        self.perceptron = perceptron
        self.penalty_coefficient = settings.penalty
        self.dropout = nn.Dropout(settings.word_dropout)

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
