"""What a packed Transformer is made of, as seven functions; there are plain ones and fused ones."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from regard.fast.output.parts import Losses
from regard.fast.packed.spans import Spans


class Linear(Protocol):
    """X Wᵀ + b, or X Wᵀ."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """X N,I; weight O,I -> N,O."""
        ...


class FeedForward(Protocol):
    """max(0, x W_1 + b_1) W_2 (Vaswani 2017, eq. 2), all but b_2."""

    def __call__(self, x: Tensor, W_1: Tensor, b_1: Tensor, W_2: Tensor) -> Tensor:
        """X N,size -> N,size."""
        ...


class Attend(Protocol):
    """softmax(Q Kᵀ / √d_k) V of each sentence and head (eq. 1)."""

    def __call__(self, q: Tensor, kv: Tensor, queries: Spans, keys: Spans, heads: int) -> Tensor:
        """Q N,size; keys and values M,2·size -> N,size."""
        ...


class AttendSelf(Protocol):
    """The same of each sentence with itself."""

    def __call__(self, qkv: Tensor, words: Spans, heads: int, causal: bool) -> Tensor:
        """Queries, keys and values N,3·size -> N,size."""
        ...


class AddNorm(Protocol):
    """A link around a sub-layer and the norm behind it: s = x + dropout(y + b), LayerNorm(s)."""

    def __call__(
        self,
        x: Tensor,
        y: Tensor,
        bias: Tensor,
        weight: Tensor,
        shift: Tensor,
        epsilon: float,
        dropout: float,
        post: bool,
    ) -> tuple[Tensor, Tensor]:
        """X, the stream, and y N,size -> s, or with `post` its norm, as precisely as x; and its norm as y."""
        ...


class Counts(Protocol):
    """How much there is in a batch."""

    def __call__(self, lengths: Tensor, target_in: Tensor, target_out: Tensor) -> Tensor:
        """Lengths B and targets B,T -> the least of the lengths, their sum, and the sum of the targets' lengths."""
        ...


class Parts(NamedTuple):
    """One of each."""

    linear: Linear
    feed_forward: FeedForward
    attend: Attend
    attend_self: AttendSelf
    add_norm: AddNorm
    losses: Losses
    counts: Counts
