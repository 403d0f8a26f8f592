"""What the models share that choose a label for a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from regard.models.checks import at_least_one, share
from regard.models.criterion import CrossEntropy
from regard.models.model import Model
from regard.models.recurrent import embedding
from regard.nn import ElmanCell, GRUCell, LSTMCell, Recurrent

CELLS: dict[str, Callable[[int, int], nn.Module]] = {
    "gru": partial(GRUCell, form="torch"),
    "lstm": LSTMCell,
    "elman": ElmanCell,
}
FIRST_WORDS = 0.1  # standard deviation


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings:
    """What the `model` section has of every recipe that classifies."""

    size: int = 100
    embedding: int | None = None
    layers: int = 1
    dropout: float = 0.0
    cell: Literal["gru", "lstm", "elman"] = "gru"
    pooling: Literal["attention", "max", "mean"] = "attention"

    def __post_init__(self) -> None:
        share(self, "dropout")
        at_least_one(self, "size", "layers", "embedding")

    @property
    def word_size(self) -> int:
        """Width of an embedding."""
        return self.size if self.embedding is None else self.embedding

    def words(self, vocabulary: int) -> nn.Embedding:
        """Word vectors that begin small: of a rare word, drawn from N(0, 1), little but noise would ever be learnt."""
        words = embedding(vocabulary, self.word_size)
        nn.init.normal_(words.weight, std=FIRST_WORDS)
        return words

    def reader(self, input_size: int) -> Recurrent:
        """A recurrent network that reads in both directions."""
        return Recurrent(CELLS[self.cell], input_size, self.size, self.layers, True, self.dropout)


class Classified(NamedTuple):
    """A score for each label, and where the model looked, if it looks."""

    logits: Tensor  # B,L
    weights: Tensor | None  # B,hops,S of a text, or B,N,S of the words in each of N sentences
    sentence_weights: Tensor | None = None  # B,N


class Classifier(Model):
    """A model with a label for each text.

    `forward(ids, lengths)` gives `Classified`: ids B,S with lengths B, or B,N,S with the words of each sentence B,N.
    """

    def __init__(self, criterion: CrossEntropy) -> None:
        super().__init__()
        settings = criterion.settings
        for name, value in (("guided", settings.guided), ("r_drop", settings.r_drop)):
            if value:
                raise ValueError(f"a model that classifies has no loss.{name}, which is {value}")
        self.label_smoothing = settings.label_smoothing

    def forward(self, ids: Tensor, lengths: Tensor) -> Classified:
        """Reads a batch of texts."""
        raise NotImplementedError

    def penalty(self, classified: Classified) -> Tensor | float:
        """What the way a model looked costs beside the wrong labels, summed up over a batch."""
        return 0.0

    def summed(self, ids: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        """−Σ log p(label), with a share `label_smoothing` of the mass spread over all labels; and the penalty."""
        classified: Classified = self(ids, lengths)
        loss = F.cross_entropy(classified.logits, labels, reduction="sum", label_smoothing=self.label_smoothing)
        return loss + self.penalty(classified)

    def count(self, ids: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        """What the sum is divided by: texts."""
        return labels.new_tensor(len(labels))
