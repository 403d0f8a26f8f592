"""What the models share that choose a label for a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from regard.models.base import Model
from regard.models.losses import CrossEntropy
from regard.models.rnn_common import make_embedding
from regard.models.settings_checks import check_fraction, check_positive
from regard.nn import ElmanCell, GRUCell, LSTMCell, Recurrent

CLASSIFIER_CELLS: dict[str, Callable[[int, int], nn.Module]] = {
    "gru": partial(GRUCell, form="torch"),
    "lstm": LSTMCell,
    "elman": ElmanCell,
}
EMBEDDING_INIT_STD = 0.1  # standard deviation


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
        check_fraction(self, "dropout")
        check_positive(self, "size", "layers", "embedding")

    @property
    def embedding_size(self) -> int:
        """Width of an embedding."""
        return self.size if self.embedding is None else self.embedding

    def make_word_embedding(self, vocabulary_size: int) -> nn.Embedding:
        """Word vectors that begin small: of a rare word, drawn from N(0, 1), little but noise would ever be learnt."""
        words = make_embedding(vocabulary_size, self.embedding_size)
        nn.init.normal_(words.weight, std=EMBEDDING_INIT_STD)
        return words

    def make_encoder(self, input_size: int) -> Recurrent:
        """A recurrent network that reads in both directions."""
        return Recurrent(CLASSIFIER_CELLS[self.cell], input_size, self.size, self.layers, True, self.dropout)


class ClassifierOutput(NamedTuple):
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

    def forward(self, ids: Tensor, lengths: Tensor) -> ClassifierOutput:
        """Reads a batch of texts."""
        raise NotImplementedError

    def attention_penalty(self, output: ClassifierOutput) -> Tensor | float:
        """What the way a model looked costs beside the wrong labels, summed up over a batch."""
        return 0.0

    def loss_sum(self, ids: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        """−Σ log p(label), with a share `label_smoothing` of the mass spread over all labels; and the penalty."""
        classified: ClassifierOutput = self(ids, lengths)
        loss = F.cross_entropy(classified.logits, labels, reduction="sum", label_smoothing=self.label_smoothing)
        return loss + self.attention_penalty(classified)

    def loss_count(self, ids: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        """What the sum is divided by: texts."""
        return labels.new_tensor(len(labels))
