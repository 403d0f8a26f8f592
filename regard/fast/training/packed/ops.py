"""Operations of a packed Transformer: their interface, and the reference implementation in PyTorch."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.fast.training.linear_cross_entropy import LinearCrossEntropy
from regard.fast.training.packed.batch import Ragged, target_lengths
from regard.special_tokens import PAD


class Linear(Protocol):
    """x Wᵀ + b, or x Wᵀ."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiply x (N, I) by weight (O, I) -> (N, O)."""
        ...


class FeedForward(Protocol):
    """max(0, x W_1 + b_1) W_2 (Vaswani 2017, eq. 2), without b_2."""

    def __call__(self, x: Tensor, W_1: Tensor, b_1: Tensor, W_2: Tensor) -> Tensor:
        """Transform x (N, size) -> (N, size)."""
        ...


class CrossAttention(Protocol):
    """softmax(Q Kᵀ / √d_k) V of each sentence and head (eq. 1)."""

    def __call__(self, q: Tensor, kv: Tensor, queries: Ragged, keys: Ragged, heads: int) -> Tensor:
        """Attend with q (N, size) over keys and values (M, 2·size) -> (N, size)."""
        ...


class SelfAttention(Protocol):
    """Attention of each sentence within itself."""

    def __call__(self, qkv: Tensor, words: Ragged, heads: int, causal: bool) -> Tensor:
        """Attend with queries, keys and values (N, 3·size) -> (N, size)."""
        ...


class AddNorm(Protocol):
    """Residual connection and the norm that follows: s = x + dropout(y + b), LayerNorm(s)."""

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
        """Return s, or with `post` its norm in the dtype of x; and its norm in the dtype of y.

        Args:
            x: residual stream (N, size).
            y: output of a sub-layer (N, size).
            bias: bias of the sub-layer.
            weight: weight of the norm.
            shift: bias of the norm.
        """
        ...


class CountTokens(Protocol):
    """Size of a batch."""

    def __call__(self, lengths: Tensor, target_in: Tensor, target_out: Tensor) -> Tensor:
        """Return the minimum and sum of lengths (B,), and the sum of the lengths of targets (B, T)."""
        ...


class PackedOps(NamedTuple):
    """An implementation of all operations."""

    linear: Linear
    feed_forward: FeedForward
    cross_attention: CrossAttention
    self_attention: SelfAttention
    add_norm: AddNorm
    cross_entropy: LinearCrossEntropy
    count_tokens: CountTokens


# Not cuDNN's: it plans for every new shape, which takes longer than a whole update.
SDPA_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x Wᵀ + b in the dtype of x."""
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def feed_forward(x: Tensor, W_1: Tensor, b_1: Tensor, W_2: Tensor) -> Tensor:
    """Compute max(0, x W_1 + b_1) W_2."""
    return linear(F.relu(linear(x, W_1, b_1)), W_2, None)


def cross_attention(q: Tensor, kv: Tensor, queries: Ragged, keys: Ragged, heads: int) -> Tensor:
    """Attend over the source."""
    k, v = kv.chunk(2, 1)
    return _attend_padded(q, k, v, queries, keys, heads, causal=False)


def self_attention(qkv: Tensor, words: Ragged, heads: int, causal: bool) -> Tensor:
    """Attend within sentences; `causal`: to earlier tokens only."""
    q, k, v = qkv.chunk(3, 1)
    return _attend_padded(q, k, v, words, words, heads, causal)


def _attend_padded(q: Tensor, k: Tensor, v: Tensor, queries: Ragged, keys: Ragged, heads: int, causal: bool) -> Tensor:
    """Attend over padded sentences with PyTorch's kernels; empty sources give zeros, where a softmax would give NaN."""

    def split(x: Tensor, spans: Ragged) -> Tensor:
        rows = spans.pad(x)
        return rows.view(*rows.shape[:2], heads, -1).transpose(1, 2)

    positions = torch.arange(keys.max_length, device=q.device)
    mask = (positions < keys.cu_seqlens.diff().clamp(min=1)[:, None])[:, None, None]  # (B, 1, 1, S)
    if causal:
        mask = mask & (positions <= positions[:, None])
    with sdpa_kernel(SDPA_BACKENDS):
        context = F.scaled_dot_product_attention(split(q, queries), split(k, keys), split(v, keys), mask)
    return queries.pack(context.transpose(1, 2).flatten(2))


def add_norm(
    x: Tensor, y: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, epsilon: float, dropout: float, post: bool
) -> tuple[Tensor, Tensor]:
    """Return the residual stream after a sub-layer, and the input of the next one."""
    s = x + F.dropout(y + bias.to(y.dtype), dropout).to(x.dtype)
    n = F.layer_norm(s, s.shape[1:], weight, shift, epsilon)
    return n if post else s, n.to(y.dtype)


def cross_entropy(
    h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, r_drop: float = 0.0
) -> Tensor:
    """Return Σ −log p(y), smoothed; with R-Drop half of it plus α/4 · Σ [KL(p‖q) + KL(q‖p)] of two halves of h."""
    logits = linear(h, weight, bias).to(torch.promote_types(h.dtype, torch.float32))
    total = F.cross_entropy(logits, targets, ignore_index=PAD, reduction="sum", label_smoothing=smoothing)
    if not r_drop:
        return total
    p, q = logits.log_softmax(-1).chunk(2)
    divergence = ((p.exp() - q.exp()) * (p - q)).sum(-1)
    return total / 2 + r_drop / 4 * divergence.masked_fill(targets.chunk(2)[0] == PAD, 0.0).sum()


def count_tokens(lengths: Tensor, target_in: Tensor, target_out: Tensor) -> Tensor:
    """Return the shortest source length, and the sums of source and target lengths."""
    return torch.stack((lengths.min(), lengths.sum(), target_lengths(target_in, target_out).sum()))


TORCH_OPS = PackedOps(linear, feed_forward, cross_attention, self_attention, add_norm, cross_entropy, count_tokens)
