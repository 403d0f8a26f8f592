"""Cui et al. 2017, Attention-over-attention neural networks for reading comprehension; Kadlec et al. 2016 beside it.

A document D and a query Q from which a word was taken: which word of the document is it? H is the width of a state,
both directions together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.models.checks import at_least_one, not_negative, share
from regard.models.criterion import CrossEntropy
from regard.models.model import Model
from regard.models.recurrent import embedding
from regard.nn import AttentionOverAttention, GRUCell, Recurrent, hidden, masked_softmax, prefix_mask


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
        share(self, "dropout")
        at_least_one(self, "size", "layers", "embedding")
        not_negative(self, "reach", "penalty")

    @property
    def word_size(self) -> int:
        """Width of an embedding."""
        return self.size if self.embedding is None else self.embedding


class Looked(NamedTuple):
    """Where a reader looked."""

    document: Tensor  # s B,S: the weights of the document's words
    query: Tensor | None  # β B,Q: those of the query's, where these are weighed


class Over(nn.Module):
    """Attention over attention (Cui 2017, eq. 5 to 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = AttentionOverAttention()

    def forward(self, document: Tensor, query: Tensor, last: Tensor, masks: tuple[Tensor, Tensor]) -> Looked:
        """States of the document B,S,H and of the query B,Q,H."""
        return Looked(*self.attention.weighed(document, query, *masks))


class Single(nn.Module):
    """s_i ∝ exp(h_doc(i)ᵀ q), q the query's last states in both directions (Kadlec 2016, the attention-sum reader)."""

    def forward(self, document: Tensor, query: Tensor, last: Tensor, masks: tuple[Tensor, Tensor]) -> Looked:
        """States of the document B,S,H and the query's last states B,H."""
        return Looked(masked_softmax((document @ last[..., None]).squeeze(-1), masks[0]), None)


class Reader(Model):
    """One embedding for both, a bidirectional GRU for each (eq. 1 to 4), and attention between their states."""

    def __init__(
        self,
        embedding: nn.Embedding,
        document: Recurrent,
        query: Recurrent,
        attention: nn.Module,
        dropout: float = 0.0,
        penalty: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.document = document
        self.query = query
        self.attention = attention
        self.dropout = nn.Dropout(dropout)
        self.penalty = penalty

    def forward(self, document: Tensor, lengths: Tensor, query: Tensor, query_lengths: Tensor) -> Looked:
        """Ids B,S and B,Q with the numbers of real ones -> where it looked."""
        h_doc, _ = self.document(self.dropout(self.embedding(document)), lengths)
        h_query, states = self.query(self.dropout(self.embedding(query)), query_lengths)
        masks = prefix_mask(lengths, document.shape[1]), prefix_mask(query_lengths, query.shape[1])
        exact = self.embedding.weight.dtype
        # Scores are long sums of products: in the few digits of autocast a softmax would be another.
        with torch.autocast(document.device.type, enabled=False):
            looked: Looked = self.attention(h_doc.to(exact), h_query.to(exact), hidden(states[-1]).to(exact), masks)
        return looked

    def summed(
        self, document: Tensor, lengths: Tensor, query: Tensor, query_lengths: Tensor, places: Tensor, answer: Tensor
    ) -> Tensor:
        """−Σ log P(answer | D, Q) (eq. 12); `places` B,S says which candidate each word of the document is, −1 none.

        P(w | D, Q) = Σ_{i ∈ I(w,D)} s_i (eq. 11). The penalty is on the embeddings, once for each question.
        """
        s = self(document, lengths, query, query_lengths).document
        P: Tensor = (s * (places == answer[:, None])).sum(1)
        loss = -P.clamp(min=torch.finfo(P.dtype).tiny).log().sum()
        return loss + self.penalty * len(answer) * self.embedding.weight.square().sum() if self.penalty else loss

    def count(
        self, document: Tensor, lengths: Tensor, query: Tensor, query_lengths: Tensor, places: Tensor, answer: Tensor
    ) -> Tensor:
        """The number of questions."""
        return torch.tensor(len(answer))


def build(settings: CuiSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> Reader:
    """The reader for a vocabulary of `source_size` words; it chooses among words of the document.

    So there is no second vocabulary, and `target_size` says nothing here; nor does `criterion`, for models that write.
    """
    words = embedding(source_size, settings.word_size)
    document, query = recurrent(settings), recurrent(settings)
    attention = {"over": Over, "single": Single}[settings.attention]()
    model = Reader(words, document, query, attention, settings.dropout, settings.penalty)
    nn.init.uniform_(words.weight, -settings.reach, settings.reach)
    for stack in (document, query):
        orthogonal(stack)
    return model


def recurrent(settings: CuiSettings) -> Recurrent:
    """A bidirectional GRU."""
    return Recurrent(GRUCell, settings.word_size, settings.size, settings.layers, True, settings.dropout)


def orthogonal(stack: Recurrent) -> None:
    """Each gate's matrices orthogonal, its biases 0 (Cui 2017, experimental setups)."""
    for parameter in stack.parameters():
        if parameter.dim() == 1:
            nn.init.zeros_(parameter)
        else:
            for gate in parameter.chunk(3):
                nn.init.orthogonal_(gate)
