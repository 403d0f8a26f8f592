"""Yang et al. 2016, Hierarchical attention networks: words are pooled into sentences, sentences into a document.

The GRU is the paper's (section 2.1), with the reset gate after the product, as in PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from regard.config import PositiveInt
from regard.models.base import CrossEntropy
from regard.models.classifier import POOLING, Classifier, ClassifierOutput, ClassifierSettings
from regard.nn import HierarchicalAttention, prefix_mask
from regard.nn.pooling import HierarchicalPooling


@dataclass(frozen=True, kw_only=True)
class YangSettings(ClassifierSettings):
    """The `model` section of `yang2016`."""

    reads_sentences: ClassVar[bool] = True
    attention: PositiveInt | None = None

    @property
    def context_size(self) -> int:
        """Width of u_w and u_s."""
        return 2 * self.size if self.attention is None else self.attention


class YangClassifier(Classifier):
    """Classifier over h_it of words, s_i of sentences, v of the document (eq. 1–10): softmax(W_c v + b_c) (eq. 11)."""

    def __init__(self, settings: YangSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> None:
        super().__init__(criterion)
        recurrent = settings.make_encoder(settings.embedding_size)  # this order decides the weights of a seed
        width = recurrent.output_size
        sentence_encoder = settings.make_encoder(width)
        self.embedding = settings.make_embedding(source_size)
        self.recurrent = recurrent
        if settings.pooling == "attention":
            self.hierarchy: HierarchicalPooling = HierarchicalAttention(
                width, settings.context_size, sentence_encoder, width
            )
        else:  # HN-AVE and HN-MAX in the paper's section 3.2
            pooling = POOLING[settings.pooling]()
            self.hierarchy = HierarchicalPooling(pooling, pooling, sentence_encoder)
        self.output = nn.Linear(width, target_size)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, ids: Tensor, lengths: Tensor) -> ClassifierOutput:
        """Return logits (B, L), word weights (B, N, S) and sentence weights (B, N).

        Args:
            ids: token ids (B, N, S).
            lengths: number of words of each sentence, (B, N); 0 after the last sentence.
        """
        word_mask = prefix_mask(lengths.flatten(), ids.shape[2]).view(ids.shape)
        document = self.hierarchy(self.encode_words(ids, lengths), word_mask, lengths > 0)
        logits = self.output(self.dropout(document.vector))
        return ClassifierOutput(logits, document.word_weights, document.sentence_weights)

    def encode_words(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return h_it of each word, (B, N, S, 2u); padding sentences are not computed."""
        real = lengths > 0
        if not real.any():
            return self.embedding.weight.new_zeros(*ids.shape, self.recurrent.output_size)
        states, _ = self.recurrent(self.dropout(self.embedding(ids[real])), lengths[real])
        padded: Tensor = states.new_zeros(*ids.shape, states.shape[-1]).index_put((real,), states)
        return padded
