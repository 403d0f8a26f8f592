"""Lin et al. 2017, A structured self-attentive sentence embedding: several looks at a text, each a row of a matrix.

Equations are those of the paper's section 2; the output is that of its appendix, a multi-layer perceptron.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from regard.models.checks import at_least_one, not_negative, share
from regard.models.classifier import Classified, Classifier, ClassifierSettings
from regard.models.criterion import CrossEntropy
from regard.nn import MaxPooling, MeanPooling, Recurrent, StructuredSelfAttention, prefix_mask


@dataclass(frozen=True, kw_only=True)
class LinSettings(ClassifierSettings):
    """The `model` section of `lin2017`."""

    cell: Literal["gru", "lstm", "elman"] = "lstm"
    attention: int = 350
    hops: int = 30
    penalty: float = 0.1
    mlp: int = 2000
    word_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "attention", "hops", "mlp")
        not_negative(self, "penalty")
        share(self, "word_dropout")


class Lin(Classifier):
    """H of a bidirectional LSTM (eq. 1–4), M = A H (eq. 6, 7), a perceptron over M, and the penalty on A (eq. 8).

    With another pooling in the place of attention, M is one row: the mean or the maximum of H.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        recurrent: Recurrent,
        pooling: nn.Module,
        perceptron: nn.Module,
        criterion: CrossEntropy,
        coefficient: float,
        dropout: float,
    ) -> None:
        super().__init__(criterion)
        self.embedding = embedding
        self.recurrent = recurrent
        self.pooling = pooling
        self.perceptron = perceptron
        self.coefficient = coefficient
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor, lengths: Tensor) -> Classified:
        """Ids B,S with lengths B -> logits B,L and weights A B,hops,S."""
        H, _ = self.recurrent(self.dropout(self.embedding(ids)), lengths)
        M, weights = self.pooling(H, prefix_mask(lengths, ids.shape[1]))
        return Classified(self.perceptron(M.flatten(1)), weights)

    def penalty(self, classified: Classified) -> Tensor | float:
        """The coefficient times ‖A Aᵀ − I‖²_F of each text (eq. 8), summed up."""
        if classified.weights is None or not self.coefficient:
            return 0.0
        return self.coefficient * StructuredSelfAttention.penalty(classified.weights).sum()


def build(settings: LinSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> Lin:
    """The model of the settings, for a vocabulary and a number of labels."""
    recurrent = settings.reader(settings.word_size)
    width = recurrent.output_size
    makers: dict[str, Callable[[], nn.Module]] = {
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
    return Lin(
        settings.words(source_size),
        recurrent,
        makers[settings.pooling](),
        perceptron,
        criterion,
        settings.penalty,
        settings.word_dropout,
    )
