"""Pooling of token states into a text vector: mean, max, structured self-attention, hierarchical attention.

Also attention over attention, which pools a document by a query (Cui 2017), and the sum of weights of hashed n-grams.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.nn.memory import masked_softmax


class MeanPooling(nn.Module):
    """Mean pooling: (1/n) Σ h, without attention weights."""

    def forward(self, states: Tensor, mask: Tensor) -> tuple[Tensor, None]:
        """Return the mean (B, size) of states (B, S, size) with mask (B, S); zeros for a text without words."""
        real = mask[..., None].to(states.dtype)
        return (states * real).sum(1) / real.sum(1).clamp(min=1), None


class MaxPooling(nn.Module):
    """Max pooling: the maximum of h in each dimension, without attention weights."""

    def forward(self, states: Tensor, mask: Tensor) -> tuple[Tensor, None]:
        """Return the maxima (B, size) of states (B, S, size) with mask (B, S); zeros for a text without words."""
        lowest = torch.finfo(states.dtype).min
        highest = states.masked_fill(~mask[..., None], lowest).amax(1)
        return highest.masked_fill(~mask.any(1, keepdim=True), 0.0), None


class StructuredSelfAttention(nn.Module):
    """Structured self-attention: A = softmax(W_s2 tanh(W_s1 Hᵀ)) (Lin 2017, eq. 6), M = A H (eq. 7), without biases.

    A has one row for each of the `hops`.
    """

    def __init__(self, size: int, hidden: int, hops: int) -> None:
        super().__init__()
        self.W_s1 = nn.Linear(size, hidden, bias=False)
        self.W_s2 = nn.Linear(hidden, hops, bias=False)

    def forward(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embedding (B, hops, size) and the weights (B, hops, S) of states (B, S, size) with mask (B, S)."""
        scores = self.W_s2(torch.tanh(self.W_s1(states))).transpose(1, 2)
        weights = masked_softmax(scores, mask[:, None])
        return weights @ states, weights

    @staticmethod
    def penalty(weights: Tensor) -> Tensor:
        """Return ‖A Aᵀ − I‖²_F of each sentence (eq. 8), (B, hops, S) → (B,).

        It penalises hops that attend to the same words.
        """
        gram = weights @ weights.transpose(1, 2)
        return (gram - torch.eye(gram.shape[1], device=gram.device, dtype=gram.dtype)).square().sum((1, 2))


class ContextAttention(nn.Module):
    """Attention with a learned context u_c: u = tanh(W h + b), α = softmax(uᵀ u_c), Σ α h (Yang 2016, section 2.2)."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.W = nn.Linear(size, hidden)
        self.context = nn.Parameter(torch.empty(hidden))  # u_w or u_s
        nn.init.uniform_(self.context, -(hidden**-0.5), hidden**-0.5)

    def forward(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summary (B, size) and the weights (B, S) of states (B, S, size) with mask (B, S)."""
        weights = masked_softmax(torch.tanh(self.W(states)) @ self.context, mask)
        return (weights[:, None] @ states).squeeze(1), weights


class HierarchicalOutput(NamedTuple):
    """Document vector with the attention weights of words and sentences, None for pooling without attention."""

    vector: Tensor  # (B, size)
    word_weights: Tensor | None = None  # (B, N, S), of the words in each sentence
    sentence_weights: Tensor | None = None  # (B, N)


class HierarchicalPooling(nn.Module):
    """Hierarchical pooling: words are pooled into sentences, sentences into a document (Yang 2016, section 2.2).

    `words` and `sentences` are called like `MeanPooling`. `sentence_encoder` is called like `Recurrent`, on sentence
    vectors (B, N, size) and their number (B,); the first item of its result are the states that `sentences` pools. None
    skips it.
    """

    def __init__(self, words: nn.Module, sentences: nn.Module, sentence_encoder: nn.Module | None = None) -> None:
        super().__init__()
        self.words = words
        self.sentence_encoder = sentence_encoder
        self.sentences = sentences

    def forward(self, words: Tensor, word_mask: Tensor, sentence_mask: Tensor) -> HierarchicalOutput:
        """Return the document vector and the attention weights.

        Args:
            words: word states (B, N, S, size).
            word_mask: True for real words, (B, N, S).
            sentence_mask: True for real sentences, (B, N).
        """
        vectors, word_weights = self.words(words.flatten(0, 1), word_mask.flatten(0, 1))
        sentences = vectors.unflatten(0, words.shape[:2])
        if self.sentence_encoder is not None:
            sentences = self.sentence_encoder(sentences, sentence_mask.sum(1))[0]
        vector, sentence_weights = self.sentences(sentences, sentence_mask)
        if word_weights is not None:
            word_weights = word_weights.unflatten(0, words.shape[:2])
        return HierarchicalOutput(vector, word_weights, sentence_weights)


class HierarchicalAttention(HierarchicalPooling):
    """Hierarchical pooling by attention; `sentence_size` is the width of the sentence encoder's states."""

    def __init__(
        self, word_size: int, hidden: int, sentence_encoder: nn.Module | None = None, sentence_size: int | None = None
    ) -> None:
        if (sentence_encoder is None) != (sentence_size is None):
            raise ValueError("pass sentence_encoder and sentence_size, its output width, together or not at all")
        words, sentences = ContextAttention(word_size, hidden), ContextAttention(sentence_size or word_size, hidden)
        super().__init__(words, sentences, sentence_encoder)


class AttentionOverAttention(nn.Module):
    """Attention over attention: s = α β (Cui 2017, section 3), the attention of query words weighted by importance.

    M = D Qᵀ; α is its softmax over the document for each query word, β the mean over the document's words of the
    softmax over the query.
    """

    def forward(self, document: Tensor, query: Tensor, document_mask: Tensor, query_mask: Tensor) -> Tensor:
        """Return weights (B, S) of the document's words.

        Args:
            document: document states (B, S, H).
            query: query states (B, Q, H).
            document_mask: True for real document words, (B, S).
            query_mask: True for real query words, (B, Q).
        """
        return self.forward_with_query_weights(document, query, document_mask, query_mask)[0]

    def forward_with_query_weights(
        self, document: Tensor, query: Tensor, document_mask: Tensor, query_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the document weights s (B, S) and the query weights β (B, Q); arguments as of `forward`."""
        M = document @ query.transpose(1, 2)  # (B, S, Q)
        alpha = masked_softmax(M.transpose(1, 2), document_mask[:, None] & query_mask[..., None])  # (B, Q, S)
        query_softmax = masked_softmax(M, query_mask[:, None] & document_mask[..., None])  # (B, S, Q)
        beta = query_softmax.sum(1) / document_mask.sum(1, keepdim=True).clamp(min=1)  # (B, Q)
        return (beta[:, None] @ alpha).squeeze(1), beta


class NgramLinear(nn.Module):
    """Linear map of a set F of features: s/√|F| Σ_{f∈F} W_f + b.

    |F| is the number of features before dropout, so that texts of all lengths have logits of one scale. W starts at 0.
    Feature 0 is padding. In training, each feature is left out with the probability `dropout`.
    """

    def __init__(self, num_features: int, output_size: int, scale: float = 3.0, dropout: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Embedding(num_features, output_size, padding_idx=0)
        nn.init.zeros_(self.weight.weight)
        self.bias = nn.Parameter(torch.zeros(output_size))
        self.scale = scale
        self.dropout = dropout

    def forward(self, features: Tensor, factors: Tensor | None = None) -> Tensor:
        """Return outputs (B, O) for sets of features (B, N), padded with 0.

        With `factors` (M, B, N), which the features of each set are multiplied by, return outputs (M, B, O).
        """
        kept, norm = features, self.scale / (features > 0).sum(1, keepdim=True).clamp(min=1).sqrt()
        if self.training and self.dropout:
            kept = features * (torch.rand(features.shape, device=features.device) >= self.dropout)
            norm = norm / (1 - self.dropout)
        values = self.weight(kept)
        summed = values.sum(1) if factors is None else torch.einsum("mbn,bno->mbo", factors, values)
        return summed * norm + self.bias
