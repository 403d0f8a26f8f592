"""Operations of a packed Transformer: their interface, and the reference implementation in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.fast.training.linear_cross_entropy import LinearCrossEntropy
from regard.fast.training.packed.batch import Ragged, target_lengths
from regard.special_tokens import PAD


class PackedOps(NamedTuple):
    """An implementation of all operations on N tokens, with the signatures of the functions below."""

    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    feed_forward: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    cross_attention: Callable[..., Tensor]
    self_attention: Callable[..., Tensor]
    add_norm: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float, float, bool], tuple[Tensor, Tensor]]
    cross_entropy: LinearCrossEntropy
    count_tokens: Callable[[Tensor, Tensor, Tensor], Tensor]


# Not cuDNN's: it plans for every new shape, which takes longer than a whole update.
SDPA_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x Wᵀ + b, or x Wᵀ, of x (N, I) and weight (O, I), in the dtype of x -> (N, O)."""
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def feed_forward(x: Tensor, W_1: Tensor, b_1: Tensor, W_2: Tensor) -> Tensor:
    """Compute max(0, x W_1 + b_1) W_2 of x (N, size) (Vaswani 2017, eq. 2), without b_2 -> (N, size)."""
    return linear(F.relu(linear(x, W_1, b_1)), W_2, None)


def cross_attention(q: Tensor, kv: Tensor, queries: Ragged, keys: Ragged, heads: int) -> Tensor:
    """Compute softmax(Q Kᵀ / √d_k) V of each sentence and head (eq. 1), given q (N, size) and kv (M, 2·size)."""
    (q_heads,), (k, v) = _split_heads(q, queries, heads, 1), _split_heads(kv, keys, heads, 2)
    return _attend_padded(q_heads, k, v, queries, keys, causal=False)


def self_attention(qkv: Tensor, words: Ragged, heads: int, causal: bool) -> Tensor:
    """Attend within sentences, given queries, keys and values (N, 3·size); `causal`: to earlier tokens only."""
    q, k, v = _split_heads(qkv, words, heads, 3)
    return _attend_padded(q, k, v, words, words, causal)


def _split_heads(x: Tensor, words: Ragged, heads: int, count: int) -> tuple[Tensor, ...]:
    """Split (N, count·size) into `count` tensors (B, heads, T, d); sentences are padded once for all of them."""
    rows = len(words.cu_seqlens) - 1
    padded = x if len(x) == rows * words.max_length else words.pad(x)
    return padded.view(rows, words.max_length, count, heads, -1).permute(2, 0, 3, 1, 4).unbind()


def _attend_padded(q: Tensor, k: Tensor, v: Tensor, queries: Ragged, keys: Ragged, causal: bool) -> Tensor:
    """Attend over padded sentences with PyTorch's kernels; empty sources give zeros, where a softmax would give NaN.

    On a CPU they give each core some sentences and heads; `bmm` shares every small product out among the cores.
    """
    positions = torch.arange(keys.max_length, device=q.device)
    mask = (positions < keys.cu_seqlens.diff().clamp(min=1)[:, None])[:, None, None]  # (B, 1, 1, S)
    if causal:
        mask = mask & (positions <= positions[:, None])
    is_whole = mask.is_cpu and bool(mask.all())  # a GPU would wait for the answer
    with sdpa_kernel(SDPA_BACKENDS):
        context = F.scaled_dot_product_attention(q, k, v, None if is_whole else mask).transpose(1, 2)
    count = len(queries.seq_ids)
    return (context if count == context.shape[0] * context.shape[1] else queries.pack(context)).reshape(count, -1)


def add_norm(
    x: Tensor, y: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, epsilon: float, dropout: float, post: bool
) -> tuple[Tensor, Tensor]:
    """Compute a residual connection and the norm that follows: s = x + dropout(y + bias), LayerNorm(s).

    Args:
        x: residual stream (N, size).
        y: output of a sub-layer (N, size), which lacks its bias.
        weight, shift: weight and bias of the norm.

    Returns:
        s, or with `post` its norm in the dtype of x; and its norm in the dtype of y, the input of the next sub-layer.
    """
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
    """Return the minimum and sum of lengths (B,), and the sum of the lengths of targets (B, T)."""
    return torch.stack((lengths.min(), lengths.sum(), target_lengths(target_in, target_out).sum()))


TORCH_OPS = PackedOps(linear, feed_forward, cross_attention, self_attention, add_norm, cross_entropy, count_tokens)
