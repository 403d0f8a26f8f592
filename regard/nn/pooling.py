"""What sums up a text: structured self-attention and hierarchical attention; a mean or a maximum without any."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.nn.mask import masked_softmax


class MeanPooling(nn.Module):
    """(1/n) Σ h: every word counts alike, and there are no weights to look at."""

    def forward(self, states: Tensor, mask: Tensor) -> tuple[Tensor, None]:
        """States B,S,size with their mask B,S -> their mean B,size; zeros where there is no word."""
        real = mask[..., None].to(states.dtype)
        return (states * real).sum(1) / real.sum(1).clamp(min=1), None


class MaxPooling(nn.Module):
    """The maximum of h in each dimension, without weights."""

    def forward(self, states: Tensor, mask: Tensor) -> tuple[Tensor, None]:
        """States B,S,size with their mask B,S -> their maxima B,size; zeros where there is no word."""
        lowest = torch.finfo(states.dtype).min
        highest = states.masked_fill(~mask[..., None], lowest).amax(1)
        return highest.masked_fill(~mask.any(1, keepdim=True), 0.0), None


class StructuredSelfAttention(nn.Module):
    """A = softmax(W_s2 tanh(W_s1 Hᵀ)) (Lin 2017, eq. 6) and M = A H (eq. 7): `hops` views of a sentence, no biases."""

    def __init__(self, size: int, hidden: int, hops: int) -> None:
        super().__init__()
        self.W_s1 = nn.Linear(size, hidden, bias=False)
        self.W_s2 = nn.Linear(hidden, hops, bias=False)

    def forward(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """States B,S,size with their mask B,S -> embedding B,hops,size and weights B,hops,S."""
        scores = self.W_s2(torch.tanh(self.W_s1(states))).transpose(1, 2)
        weights = masked_softmax(scores, mask[:, None])
        return weights @ states, weights

    @staticmethod
    def penalty(weights: Tensor) -> Tensor:
        """‖A Aᵀ − I‖²_F of each sentence (eq. 8): B,hops,S -> B; hops that look at the same words cost."""
        gram = weights @ weights.transpose(1, 2)
        return (gram - torch.eye(gram.shape[1], device=gram.device, dtype=gram.dtype)).square().sum((1, 2))


class ContextAttention(nn.Module):
    """u = tanh(W h + b), α = softmax(uᵀ u_c), Σ α h (Yang 2016, section 2.2): a learned u_c asks what matters."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.W = nn.Linear(size, hidden)
        self.context = nn.Parameter(torch.empty(hidden))  # u_w or u_s
        nn.init.uniform_(self.context, -(hidden**-0.5), hidden**-0.5)

    def forward(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """States B,S,size with their mask B,S -> summary B,size and weights B,S."""
        weights = masked_softmax(torch.tanh(self.W(states)) @ self.context, mask)
        return (weights[:, None] @ states).squeeze(1), weights


class HierarchicalOutput(NamedTuple):
    """A document in one vector, and what mattered in it."""

    vector: Tensor  # B,size
    word_weights: Tensor  # B,N,S of the words in each sentence
    sentence_weights: Tensor  # B,N


class HierarchicalAttention(nn.Module):
    """Words make sentences, sentences make the document (Yang 2016, section 2.2).

    `sentence_encoder` (None: none) is called on the sentences' vectors B,N,size and the number of them B, as
    `Recurrent` is, and gives states B,N,sentence_size first.
    """

    def __init__(
        self,
        word_size: int,
        hidden: int,
        sentence_encoder: nn.Module | None = None,
        sentence_size: int | None = None,
    ) -> None:
        super().__init__()
        self.words = ContextAttention(word_size, hidden)
        self.sentence_encoder = sentence_encoder
        if (sentence_encoder is None) != (sentence_size is None):
            raise ValueError("a sentence encoder and the width of what it gives, sentence_size, come together")
        self.sentences = ContextAttention(word_size if sentence_size is None else sentence_size, hidden)

    def forward(self, words: Tensor, word_mask: Tensor, sentence_mask: Tensor) -> HierarchicalOutput:
        """Word states B,N,S,size with a mask B,N,S, and the mask B,N of the sentences."""
        vectors, word_weights = self.words(words.flatten(0, 1), word_mask.flatten(0, 1))
        sentences = vectors.unflatten(0, words.shape[:2])
        if self.sentence_encoder is not None:
            sentences = self.sentence_encoder(sentences, sentence_mask.sum(1))[0]
        vector, sentence_weights = self.sentences(sentences, sentence_mask)
        return HierarchicalOutput(vector, word_weights.unflatten(0, words.shape[:2]), sentence_weights)


class AttentionOverAttention(nn.Module):
    """s = α β (Cui 2017, section 3): each query word's look at the document, weighed by how much that word matters.

    M = D Qᵀ; α is its softmax over the document for each query word, β the mean over the document's words of the
    softmax over the query.
    """

    def forward(self, document: Tensor, query: Tensor, document_mask: Tensor, query_mask: Tensor) -> Tensor:
        """Document B,S,H and query B,Q,H with their masks -> weights B,S of the document's words."""
        return self.forward_with_query_weights(document, query, document_mask, query_mask)[0]

    def forward_with_query_weights(
        self, document: Tensor, query: Tensor, document_mask: Tensor, query_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same, s B,S, and β B,Q: how much each word of the query matters."""
        M = document @ query.transpose(1, 2)  # B,S,Q
        alpha = masked_softmax(M.transpose(1, 2), document_mask[:, None] & query_mask[..., None])  # B,Q,S
        rows = masked_softmax(M, query_mask[:, None] & document_mask[..., None])  # B,S,Q
        beta = rows.sum(1) / document_mask.sum(1, keepdim=True).clamp(min=1)  # B,Q
        return (beta[:, None] @ alpha).squeeze(1), beta
