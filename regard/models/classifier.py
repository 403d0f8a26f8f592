"""Base class and settings of text classifiers (`lin2017`, `yang2016`, `default-classification`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import Fraction, NumLayers, PositiveInt
from regard.models.base import CrossEntropy, Model
from regard.models.rnn_common import CELLS, EmbeddingSettings
from regard.nn import GRUCell, MaxPooling, MeanPooling, Recurrent

CLASSIFIER_CELLS: dict[str, Callable[[int, int], nn.Module]] = {**CELLS, "gru": partial(GRUCell, form="torch")}
POOLING: dict[str, type[MeanPooling | MaxPooling]] = {"mean": MeanPooling, "max": MaxPooling}
EMBEDDING_INIT_STD = 0.1


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings(EmbeddingSettings):
    """Keys that the `model` sections of all classifier recipes have in common."""

    size: PositiveInt = 100
    layers: NumLayers = 1
    dropout: Fraction = 0.0
    cell: Literal["gru", "lstm", "elman"] = "gru"
    pooling: Literal["attention", "max", "mean"] = "attention"
    reads_sentences: ClassVar[bool] = False  # a text is read sentence by sentence, not as one sequence
    reads_ngrams: ClassVar[bool] = False  # `word_ngrams`, `char_ngrams`, `buckets` and `affix_buckets` say which

    def make_embedding(self, vocabulary_size: int) -> nn.Embedding:
        """Return embeddings with a small initial variance.

        From N(0, 1), rare words would stay close to their random start.
        """
        words = super().make_embedding(vocabulary_size)
        nn.init.normal_(words.weight, std=EMBEDDING_INIT_STD)
        return words

    def make_encoder(self, input_size: int) -> Recurrent:
        """Return a bidirectional recurrent network."""
        return Recurrent(CLASSIFIER_CELLS[self.cell], input_size, self.size, self.layers, True, self.dropout)


class ClassifierOutput(NamedTuple):
    """Logits of the labels, and attention weights, or None without attention."""

    logits: Tensor  # (B, L)
    weights: Tensor | None  # (B, hops, S) of a text, or (B, N, S) of the words in each of N sentences
    sentence_weights: Tensor | None = None  # (B, N)


class Classifier(Model):
    """Base class of models that predict one label for a text.

    It is built for a vocabulary of `source_size` words and `target_size` labels. `forward(ids, lengths)` returns a
    `ClassifierOutput`. Ids are (B, S) with lengths (B,), or (B, N, S) with the number of words in each sentence,
    (B, N).
    """

    def __init__(self, criterion: CrossEntropy) -> None:
        super().__init__()
        criterion.require_plain("classifier")
        self.label_smoothing = criterion.label_smoothing

    def forward(self, ids: Tensor, lengths: Tensor) -> ClassifierOutput:
        """Compute logits and attention weights for a batch of texts."""
        raise NotImplementedError

    def attention_penalty(self, output: ClassifierOutput) -> Tensor | float:
        """Return the attention regularisation loss, summed over the batch."""
        return 0.0

    def loss_sum(self, ids: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        """Return −Σ log p(label), with label smoothing, plus the attention penalty."""
        output: ClassifierOutput = self(ids, lengths)
        loss = F.cross_entropy(output.logits, labels, reduction="sum", label_smoothing=self.label_smoothing)
        return loss + self.attention_penalty(output)

    def loss_count(self, ids: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        """Return the number of texts."""
        return labels.new_tensor(len(labels))
