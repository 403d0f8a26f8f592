"""Cui et al. 2017, Attention-over-attention neural networks for reading comprehension; and Kadlec et al. 2016.

Cloze questions: given a document D and a query Q from which one word was removed, which word of the document is it? H
is the width of a state, both directions together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.config import Fraction, NonNegativeFloat, NumLayers, PositiveInt
from regard.models.base import CrossEntropy, Model
from regard.models.rnn_common import EmbeddingSettings
from regard.nn import AttentionOverAttention, GRUCell, Recurrent, hidden_state, masked_softmax, prefix_mask


@dataclass(frozen=True, kw_only=True)
class CuiSettings(EmbeddingSettings):
    """The `model` section of `cui2017`."""

    size: PositiveInt = 384
    layers: NumLayers = 1
    dropout: Fraction = 0.1
    attention: Literal["over", "single"] = "over"
    reach: NonNegativeFloat = 0.05
    penalty: NonNegativeFloat = 1e-4


class ReaderAttention(NamedTuple):
    """Attention weights of a cloze reader."""

    document: Tensor  # s (B, S), the weights of the document's words
    query: Tensor | None  # β (B, Q), the weights of the query's words; None for the attention-sum reader


class ClozeReader(Model):
    """Cloze reader: a shared embedding, a bidirectional GRU each for document and query (eq. 1 to 4), and attention.

    The attention is attention over attention (eq. 5 to 10), or that of the attention-sum reader (Kadlec 2016):
    s_i ∝ exp(h_doc(i)ᵀ q), q the query's last states in both directions.

    It is built for a vocabulary of `source_size` words. Answers are words of the document, so `target_size` is unused;
    so is `criterion`, which is for other tasks.
    """

    def __init__(self, settings: CuiSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> None:
        super().__init__()
        self.embedding = settings.make_embedding(source_size)
        self.document, self.query = _make_gru(settings), _make_gru(settings)
        self.attention = AttentionOverAttention() if settings.attention == "over" else None
        self.dropout = nn.Dropout(settings.dropout)
        self.embedding_penalty = settings.penalty
        nn.init.uniform_(self.embedding.weight, -settings.reach, settings.reach)
        for recurrent in (self.document, self.query):
            _init_gru_orthogonal_(recurrent)

    def forward(self, document: Tensor, lengths: Tensor, query: Tensor, query_lengths: Tensor) -> ReaderAttention:
        """Return the attention for document ids (B, S) and query ids (B, Q) with their lengths (B,)."""
        h_doc, _ = self.document(self.dropout(self.embedding(document)), lengths)
        h_query, states = self.query(self.dropout(self.embedding(query)), query_lengths)
        mask, query_mask = prefix_mask(lengths, document.shape[1]), prefix_mask(query_lengths, query.shape[1])
        full_precision = self.embedding.weight.dtype
        # Scores are long sums of products; in half precision their softmax would be too inexact.
        with torch.autocast(document.device.type, enabled=False):
            h_doc = h_doc.to(full_precision)
            if self.attention is not None:
                weights = self.attention.forward_with_query_weights(h_doc, h_query.to(full_precision), mask, query_mask)
                return ReaderAttention(*weights)
            final_state = hidden_state(states[-1]).to(full_precision)
            return ReaderAttention(masked_softmax((h_doc @ final_state[..., None]).squeeze(-1), mask), None)

    def loss_sum(
        self,
        document: Tensor,
        lengths: Tensor,
        query: Tensor,
        query_lengths: Tensor,
        candidate_ids: Tensor,
        answer: Tensor,
    ) -> Tensor:
        """Return −Σ log P(answer | D, Q) (eq. 12), with P(w | D, Q) = Σ_{i ∈ I(w,D)} s_i (eq. 11).

        `candidate_ids` (B, S) gives the candidate that each word of the document is, −1 for none. The L2 penalty on the
        embeddings is added once for each question.
        """
        s = self(document, lengths, query, query_lengths).document
        P: Tensor = (s * (candidate_ids == answer[:, None])).sum(1)
        loss = -P.clamp(min=torch.finfo(P.dtype).tiny).log().sum()
        if self.embedding_penalty:
            loss = loss + self.embedding_penalty * len(answer) * self.embedding.weight.square().sum()
        return loss

    def loss_count(self, *batch: Tensor) -> Tensor:
        """Return the number of questions."""
        return torch.tensor(len(batch[0]))


def _make_gru(settings: CuiSettings) -> Recurrent:
    return Recurrent(GRUCell, settings.embedding_size, settings.size, settings.layers, True, settings.dropout)


def _init_gru_orthogonal_(recurrent: Recurrent) -> None:
    """Initialise each gate's matrices as orthogonal and biases as 0 (Cui 2017, experimental setups)."""
    for parameter in recurrent.parameters():
        if parameter.dim() == 1:
            nn.init.zeros_(parameter)
        else:
            for gate in parameter.chunk(3):
                nn.init.orthogonal_(gate)
