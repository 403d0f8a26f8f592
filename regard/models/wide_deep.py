"""Wide and deep text classifier (Cheng et al. 2016, arXiv:1606.07792): a linear model of n-grams beside self-attention.

The wide part is a linear model of word and character n-grams. The deep part is an ensemble of small networks that
attend to words (Lin 2017, eq. 6, 7). Logits of both are added, and both are trained together. With few texts the
n-grams keep up with a bag of words, and attention adds what depends on context. By default a state depends on five
words only, so that the attention weight of a word is about that word.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import Fraction, NonNegativeFloat, NonNegativeInt, PositiveInt, Range
from regard.models.base import CrossEntropy
from regard.models.classifier import POOLING, Classifier, ClassifierOutput, ClassifierSettings
from regard.models.schuster1997 import NETWORKS, SequenceNetworkSettings
from regard.nn import NgramLinear, StructuredSelfAttention, prefix_mask
from regard.special_tokens import PAD, UNK

_EMBEDDING_INIT_STD = 0.3  # larger than in other classifiers: training is short


@dataclass(frozen=True, kw_only=True)
class WideDeepSettings(ClassifierSettings, SequenceNetworkSettings):
    """The `model` section of `default-classification`."""

    reads_ngrams: ClassVar[bool] = True
    network: Literal["brnn", "stacked", "rnn", "tdnn", "mlp"] = "tdnn"
    cell: Literal["gru", "lstm", "elman"] = "lstm"
    size: PositiveInt = 100
    dropout: Fraction = 0.5
    window: NonNegativeInt = 2
    embedding_dropout: Fraction = 0.3
    word_dropout: Fraction = 0.2
    hops: PositiveInt = 4
    members: PositiveInt = 3
    word_ngrams: NonNegativeInt = 3
    char_ngrams: NonNegativeInt = 5
    buckets: Annotated[int, Range(2, 1 << 30)] = 1 << 16
    affix_buckets: NonNegativeInt = 4096
    ngram_scale: NonNegativeFloat = 5.0
    ngram_dropout: Fraction = 0.5
    ngram_attention: Fraction = 0.5
    skip_words: NonNegativeInt = 2

    def __post_init__(self) -> None:
        if self.affix_buckets == 1:
            raise ValueError("affix_buckets must be 0 or at least 2, not 1: bucket 0 is padding")


class AttentionBranch(nn.Module):
    """One member of the ensemble: embeddings, a network over words, attention, and a linear output layer."""

    def __init__(self, settings: WideDeepSettings, source_size: int, target_size: int) -> None:
        super().__init__()
        self.embedding = settings.make_embedding(source_size)
        nn.init.normal_(self.embedding.weight, std=_EMBEDDING_INIT_STD)
        self.affixes: nn.Embedding | None = None
        if settings.affix_buckets:
            self.affixes = nn.Embedding(settings.affix_buckets, settings.embedding_size, padding_idx=PAD)
            nn.init.normal_(self.affixes.weight, std=_EMBEDDING_INIT_STD / 2)
        self.embedding_dropout = nn.Dropout(settings.embedding_dropout)
        self.network = NETWORKS[settings.network](settings, settings.embedding_size)
        width, has_attention = self.network.output_size, settings.pooling == "attention"
        self.pooling = (
            StructuredSelfAttention(width, width, settings.hops) if has_attention else POOLING[settings.pooling]()
        )
        self.dropout = nn.Dropout(settings.dropout)
        self.output = nn.Linear(width * (settings.hops if has_attention else 1), target_size)
        self.word_dropout = settings.word_dropout

    def forward(self, ids: Tensor, lengths: Tensor, affixes: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return logits (B, L) and attention weights (B, hops, S); arguments as of the classifier."""
        if self.training and self.word_dropout:
            is_dropped = torch.rand(ids.shape, device=ids.device) < self.word_dropout
            ids = ids.masked_fill(is_dropped & (ids != PAD), UNK)
            affixes = None if affixes is None else affixes.masked_fill(is_dropped[..., None], PAD)
        mask, words = prefix_mask(lengths, ids.shape[1]), self.embedding(ids)
        if self.affixes is not None and affixes is not None:
            words = words + self.affixes(affixes).sum(2)
        words = self.embedding_dropout(words) * mask[..., None]
        pooled, weights = self.pooling(self.network(words, lengths), mask)
        return self.output(self.dropout(pooled.flatten(1))), weights


class WideDeepClassifier(Classifier):
    """Ensemble of attention branches, each with the logits of the n-grams; probabilities are averaged."""

    def __init__(self, settings: WideDeepSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> None:
        super().__init__(criterion)
        self.members = nn.ModuleList(
            AttentionBranch(settings, source_size, target_size) for _ in range(settings.members)
        )
        self.ngrams = NgramLinear(settings.buckets, target_size, settings.ngram_scale, settings.ngram_dropout)
        self.ngram_attention = settings.ngram_attention

    def forward(self, ids: Tensor, lengths: Tensor, *features: Tensor | None) -> ClassifierOutput:
        """Return the logarithm of mean probabilities (B, L), and attention weights (B, members · hops, S).

        Args:
            ids: token ids (B, S).
            lengths: number of tokens of each text, (B,).
            features: any of these three, or None
                hashed n-grams (B, N), padded with 0;
                hashed prefix, suffix and shape of the word of each token, (B, S, 3);
                index of the first token of each n-gram (B, N).
        """
        logits, weights = self.run_members(ids, lengths, *features)
        mean = logits.log_softmax(-1).logsumexp(0) - math.log(len(self.members))
        return ClassifierOutput(mean, weights)

    def run_members(
        self,
        ids: Tensor,
        lengths: Tensor,
        ngrams: Tensor | None = None,
        affixes: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the logits of each member (members, B, L), and attention weights; arguments as of `forward`."""
        outputs = [member(ids, lengths, affixes) for member in self.members]
        logits = torch.stack([member_logits for member_logits, _ in outputs])
        weights = [weights for _, weights in outputs if weights is not None]
        if ngrams is not None:
            factors = None
            if weights and positions is not None and self.ngram_attention:
                factors = self._weigh_ngrams(torch.stack(weights).mean(2), lengths, positions)
            logits = logits + self.ngrams(ngrams, factors)
        return logits, torch.cat(weights, 1) if weights else None

    def _weigh_ngrams(self, attention: Tensor, lengths: Tensor, positions: Tensor) -> Tensor:
        """Return the factor of each n-gram (members, B, N), 1 − g + g·S·a, for the attention a (members, B, S).

        g is `ngram_attention`. The mean over all words is 1. N-grams of words after the last that is read have 1.
        """
        relative = F.pad(attention * lengths[:, None], (0, 1), value=1.0)
        index = positions.clamp(max=attention.shape[2]).expand(len(attention), -1, -1)
        return 1 + self.ngram_attention * (relative.gather(2, index) - 1)

    def loss_sum(self, ids: Tensor, lengths: Tensor, labels: Tensor, *features: Tensor | None) -> Tensor:
        """Return −Σ log p(label), with label smoothing, averaged over the members, which learn one by one."""
        logits, _ = self.run_members(ids, lengths, *features)
        repeated = labels.repeat(len(self.members))
        loss = F.cross_entropy(logits.flatten(0, 1), repeated, reduction="sum", label_smoothing=self.label_smoothing)
        return loss / len(self.members)

    def loss_count(self, ids: Tensor, lengths: Tensor, labels: Tensor, *features: Tensor | None) -> Tensor:
        """Return the number of texts."""
        return super().loss_count(ids, lengths, labels)
