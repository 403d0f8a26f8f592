"""Operations of a packed Transformer: their interface, the reference implementation in PyTorch, and one for CPUs.

That for CPUs makes fewer passes over memory: ReLU is in place, forward and backward; dropout draws 16 bits a number,
four numbers at a time; logits exist for some rows only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.fast.gemm import TORCH_GEMM, Gemm
from regard.fast.kernels.fp16 import select_gemm
from regard.fast.training.linear_cross_entropy import LinearCrossEntropy, cross_entropy_in_chunks
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
    with nullcontext() if mask.is_cpu else sdpa_kernel(SDPA_BACKENDS):
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


NUM_DRAWS = 2**16  # values of 16 bits


class LinearFunction(Function):
    """x Wᵀ + b, or x Wᵀ, in the dtype of x, by a GEMM backend."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, gemm: Gemm) -> Tensor:
        """Multiply x (N, I) by weight (O, I) -> (N, O)."""
        W = weight.to(x.dtype)
        ctx.gemm, ctx.has_bias = gemm, bias is not None
        ctx.save_for_backward(x, W)
        return gemm.mm(x, W.t()) if bias is None else gemm.linear(x, W.t(), bias.to(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight and bias."""
        (x, W), gemm, dy = ctx.saved_tensors, ctx.gemm, dy.contiguous()
        dW, db = gemm.linear_grads(dy, x) if ctx.has_bias else (gemm.weight_grad(dy, x), None)
        return gemm.mm(dy, W), dW, db, None


def linear_on_cpu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x Wᵀ + b, or x Wᵀ."""
    gemm = select_gemm(x)
    return linear(x, weight, bias) if gemm is TORCH_GEMM else LinearFunction.apply(x, weight, bias, gemm)  # type: ignore[no-untyped-call]


class FeedForwardFunction(Function):
    """max(0, x W_1 + b_1) W_2, in the dtype of x, by a GEMM backend."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, W_1: Tensor, b_1: Tensor, W_2: Tensor, gemm: Gemm) -> Tensor:
        """Save the hidden layer after ReLU, which says what passed."""
        V_1, V_2 = W_1.to(x.dtype), W_2.to(x.dtype)
        h = gemm.linear_relu(x, V_1.t(), b_1.to(x.dtype))
        ctx.gemm = gemm
        ctx.save_for_backward(x, h, V_1, V_2)
        return gemm.mm(h, V_2.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Apply the backward pass of ReLU in place."""
        (x, h, V_1, V_2), gemm, dy = ctx.saved_tensors, ctx.gemm, dy.contiguous()
        dh = gemm.mm(dy, V_2)
        dW_1, db_1 = gemm.linear_relu_grads(dh, h, x)
        return gemm.mm(dh, V_1), dW_1, db_1, gemm.weight_grad(dy, h), None


def feed_forward_on_cpu(x: Tensor, W_1: Tensor, b_1: Tensor, W_2: Tensor) -> Tensor:
    """Compute max(0, x W_1 + b_1) W_2."""
    return FeedForwardFunction.apply(x, W_1, b_1, W_2, select_gemm(x))  # type: ignore[no-untyped-call,no-any-return]


def add_norm_on_cpu(
    x: Tensor, y: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, epsilon: float, dropout: float, post: bool
) -> tuple[Tensor, Tensor]:
    """Return the residual stream after a sub-layer, and the input of the next one."""
    y = y + bias
    s = torch.addcmul(x, y, dropout_mask(y, dropout)) if dropout else x + y
    n = F.layer_norm(s, s.shape[1:], weight, shift, epsilon)
    return n if post else s, n


def dropout_mask(like: Tensor, dropout: float) -> Tensor:
    """Return the factors of dropout: 0 with probability `dropout`, else 1 / (1 − dropout)."""
    threshold = round(dropout * NUM_DRAWS)
    draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    mask = (draws[: like.numel()] >= threshold - NUM_DRAWS // 2).to(like.dtype)
    return mask.mul_(NUM_DRAWS / (NUM_DRAWS - threshold) if threshold < NUM_DRAWS else 0.0).view_as(like)


CPU_OPS = TORCH_OPS._replace(
    linear=linear_on_cpu,
    feed_forward=feed_forward_on_cpu,
    add_norm=add_norm_on_cpu,
    cross_entropy=cross_entropy_in_chunks,
)
