"""Cui et al. 2017, Attention-over-attention neural networks for reading comprehension; Kadlec et al. 2016 beside it.

A document D and a query Q from which a word was taken: which word of the document is it? H is the width of a state,
both directions together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.models.base import Model
from regard.models.losses import CrossEntropy
from regard.models.rnn_common import make_embedding
from regard.models.settings_checks import check_fraction, check_nonnegative, check_positive
from regard.nn import AttentionOverAttention, GRUCell, Recurrent, hidden_state, masked_softmax, prefix_mask


@dataclass(frozen=True, kw_only=True)
class CuiSettings:
    """The `model` section of `cui2017`."""

    size: int = 384
    embedding: int | None = None
    layers: int = 1
    dropout: float = 0.1
    attention: Literal["over", "single"] = "over"
    reach: float = 0.05
    penalty: float = 1e-4

    def __post_init__(self) -> None:
        check_fraction(self, "dropout")
        check_positive(self, "size", "layers", "embedding")
        check_nonnegative(self, "reach", "penalty")

    @property
    def embedding_size(self) -> int:
        """Width of an embedding."""
        return self.size if self.embedding is None else self.embedding


class ReaderAttention(NamedTuple):
    """Where a reader looked."""

    document: Tensor  # s B,S: the weights of the document's words
    query: Tensor | None  # β B,Q: those of the query's, where these are weighed


class AttentionOverAttentionHead(nn.Module):
    """Attention over attention (Cui 2017, eq. 5 to 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = AttentionOverAttention()

    def forward(
        self, document: Tensor, query: Tensor, final_state: Tensor, masks: tuple[Tensor, Tensor]
    ) -> ReaderAttention:
        """States of the document B,S,H and of the query B,Q,H."""
        return ReaderAttention(*self.attention.forward_with_query_weights(document, query, *masks))


class AttentionSumHead(nn.Module):
    """s_i ∝ exp(h_doc(i)ᵀ q), q the query's last states in both directions (Kadlec 2016, the attention-sum reader)."""

    def forward(
        self, document: Tensor, query: Tensor, final_state: Tensor, masks: tuple[Tensor, Tensor]
    ) -> ReaderAttention:
        """States of the document B,S,H and the query's last states B,H."""
        return ReaderAttention(masked_softmax((document @ final_state[..., None]).squeeze(-1), masks[0]), None)


class ClozeReader(Model):
    """One embedding for both, a bidirectional GRU for each (eq. 1 to 4), and attention between their states."""

    def __init__(
        self,
        embedding: nn.Embedding,
        document: Recurrent,
        query: Recurrent,
        attention: nn.Module,
        dropout: float = 0.0,
        embedding_penalty: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.document = document
        self.query = query
        self.attention = attention
        self.dropout = nn.Dropout(dropout)
        self.embedding_penalty = embedding_penalty

    def forward(self, document: Tensor, lengths: Tensor, query: Tensor, query_lengths: Tensor) -> ReaderAttention:
        """Ids B,S and B,Q with the numbers of real ones -> where it looked."""
        h_doc, _ = self.document(self.dropout(self.embedding(document)), lengths)
        h_query, states = self.query(self.dropout(self.embedding(query)), query_lengths)
        masks = prefix_mask(lengths, document.shape[1]), prefix_mask(query_lengths, query.shape[1])
        exact = self.embedding.weight.dtype
        # Scores are long sums of products: in the few digits of autocast a softmax would be another.
        with torch.autocast(document.device.type, enabled=False):
            attended: ReaderAttention = self.attention(
                h_doc.to(exact), h_query.to(exact), hidden_state(states[-1]).to(exact), masks
            )
        return attended

    def loss_sum(
        self,
        document: Tensor,
        lengths: Tensor,
        query: Tensor,
        query_lengths: Tensor,
        candidate_ids: Tensor,
        answer: Tensor,
    ) -> Tensor:
        """−Σ log P(answer | D, Q) (eq. 12); `places` B,S says which candidate each word of the document is, −1 none.

        P(w | D, Q) = Σ_{i ∈ I(w,D)} s_i (eq. 11). The penalty is on the embeddings, once for each question.
        """
        s = self(document, lengths, query, query_lengths).document
        P: Tensor = (s * (candidate_ids == answer[:, None])).sum(1)
        loss = -P.clamp(min=torch.finfo(P.dtype).tiny).log().sum()
        return (
            loss + self.embedding_penalty * len(answer) * self.embedding.weight.square().sum()
            if self.embedding_penalty
            else loss
        )

    def loss_count(
        self,
        document: Tensor,
        lengths: Tensor,
        query: Tensor,
        query_lengths: Tensor,
        candidate_ids: Tensor,
        answer: Tensor,
    ) -> Tensor:
        """The number of questions."""
        return torch.tensor(len(answer))


def build(settings: CuiSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> ClozeReader:
    """The reader for a vocabulary of `source_size` words; it chooses among words of the document.

    So there is no second vocabulary, and `target_size` says nothing here; nor does `criterion`, for models that write.
    """
    words = make_embedding(source_size, settings.embedding_size)
    document, query = _make_gru(settings), _make_gru(settings)
    attention = {"over": AttentionOverAttentionHead, "single": AttentionSumHead}[settings.attention]()
    model = ClozeReader(words, document, query, attention, settings.dropout, settings.penalty)
    nn.init.uniform_(words.weight, -settings.reach, settings.reach)
    for stack in (document, query):
        _init_gru_orthogonal_(stack)
    return model


def _make_gru(settings: CuiSettings) -> Recurrent:
    """A bidirectional GRU."""
    return Recurrent(GRUCell, settings.embedding_size, settings.size, settings.layers, True, settings.dropout)


def _init_gru_orthogonal_(stack: Recurrent) -> None:
    """Each gate's matrices orthogonal, its biases 0 (Cui 2017, experimental setups)."""
    for parameter in stack.parameters():
        if parameter.dim() == 1:
            nn.init.zeros_(parameter)
        else:
            for gate in parameter.chunk(3):
                nn.init.orthogonal_(gate)
