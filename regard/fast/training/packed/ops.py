"""Operations of a packed Transformer: their interface, and the reference implementation in PyTorch."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.fast.training.linear_cross_entropy import LinearCrossEntropy
from regard.fast.training.packed.batch import Spans, present
from regard.special_tokens import PAD


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
    losses: LinearCrossEntropy
    counts: Counts


# Not cuDNN's: it plans anew for every shape, which takes longer than a whole update.
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X Wᵀ + b, counted as precisely as x is."""
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def feed_forward(x: Tensor, W_1: Tensor, b_1: Tensor, W_2: Tensor) -> Tensor:
    """max(0, x W_1 + b_1) W_2."""
    return linear(F.relu(linear(x, W_1, b_1)), W_2, None)


def attend(q: Tensor, kv: Tensor, queries: Spans, keys: Spans, heads: int) -> Tensor:
    """Over the source."""
    k, v = kv.chunk(2, 1)
    return padded(q, k, v, queries, keys, heads, causal=False)


def attend_self(qkv: Tensor, words: Spans, heads: int, causal: bool) -> Tensor:
    """Over the sentence's own words; `causal`: those up to each."""
    q, k, v = qkv.chunk(3, 1)
    return padded(q, k, v, words, words, heads, causal)


def padded(q: Tensor, k: Tensor, v: Tensor, queries: Spans, keys: Spans, heads: int, causal: bool) -> Tensor:
    """Attention of sentences side by side, as PyTorch's takes them.

    Over a source without words, which is one of padding, it gives zeros: over nothing it would be no number.
    """

    def split(x: Tensor, spans: Spans) -> Tensor:
        rows = spans.pad(x)
        return rows.view(*rows.shape[:2], heads, -1).transpose(1, 2)

    places = torch.arange(keys.longest, device=q.device)
    seen = (places < keys.starts.diff().clamp(min=1)[:, None])[:, None, None]  # B,1,1,S
    if causal:
        seen = seen & (places <= places[:, None])
    with sdpa_kernel(KERNELS):
        found = F.scaled_dot_product_attention(split(q, queries), split(k, keys), split(v, keys), seen)
    return queries.pack(found.transpose(1, 2).flatten(2))


def add_norm(
    x: Tensor, y: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, epsilon: float, dropout: float, post: bool
) -> tuple[Tensor, Tensor]:
    """The stream behind a sub-layer, and what the next one reads."""
    s = x + F.dropout(y + bias.to(y.dtype), dropout).to(x.dtype)
    n = F.layer_norm(s, s.shape[1:], weight, shift, epsilon)
    return n if post else s, n.to(y.dtype)


def losses(
    h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, r_drop: float = 0.0
) -> Tensor:
    """Σ −log p(y), smoothed; with R-Drop half of that, and α/4 · Σ [KL(p‖q) + KL(q‖p)] of the two halves of h."""
    logits = linear(h, weight, bias).to(torch.promote_types(h.dtype, torch.float32))
    total = F.cross_entropy(logits, targets, ignore_index=PAD, reduction="sum", label_smoothing=smoothing)
    if not r_drop:
        return total
    p, q = logits.log_softmax(-1).chunk(2)
    apart = ((p.exp() - q.exp()) * (p - q)).sum(-1)
    return total / 2 + r_drop / 4 * apart.masked_fill(targets.chunk(2)[0] == PAD, 0.0).sum()


def counts(lengths: Tensor, target_in: Tensor, target_out: Tensor) -> Tensor:
    """How much there is."""
    return torch.stack((lengths.min(), lengths.sum(), present(target_in, target_out).sum()))


PLAIN = Parts(linear, feed_forward, attend, attend_self, add_norm, losses, counts)
