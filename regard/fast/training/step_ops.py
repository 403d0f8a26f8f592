"""Operations between the matrix products of recurrent decoders: LSTM gates, attention, tanh.

Each has a forward and a backward pass, in PyTorch here, as Triton kernels in `regard.fast.kernels.triton.rnn` and in C
in `regard.fast.kernels.fp16`, with the same signatures and results. All write to buffers of the caller, so that
results are where the next matrix product reads them. Sums are at least fp32.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from regard.fast.gemm import batched_matmul
from regard.fast.selftest import load_triton, runs_without_error
from regard.nn import masked_softmax

sigmoid_backward, tanh_backward = torch.ops.aten.sigmoid_backward.grad_input, torch.ops.aten.tanh_backward.grad_input
MAX_SOURCE_LENGTH = 1024  # source positions; a kernel has the scores of all of them at hand


class Window(NamedTuple):
    """Window of local attention around its centre p_t (Luong 2015, section 3.2)."""

    radius: int = 0  # D, positions to each side of ⌊p_t⌋; 0: there is no window
    sigma: float = 0.0  # of the Gaussian around p_t; 0: there is none


NO_WINDOW = Window()
TINY = 1e-30  # less than a Gaussian of σ = D/2 is anywhere within its window


class LSTMStep(NamedTuple):
    """One step of an LSTM layer, with dropout between it and the next layer."""

    pre: Tensor  # (B, 4H), pre-activations of the gates, which some implementations activate in place
    c: Tensor  # (B, H), c_{t-1}
    after: Tensor  # (B, H), c_t
    keep_mask: Tensor | None = None  # dropout mask of h_t; None: no dropout
    scale: float = 1.0  # factor 1 / (1 − p) of dropout


class AttentionStep(NamedTuple):
    """One step of attention; with a centre it is restricted to a window around it."""

    keys: Tensor  # (B, S, H)
    values: Tensor  # (B, S, V)
    mask: Tensor  # (B, S)
    weights: Tensor  # (B, S), 0 where masked
    center: Tensor | None = None  # (B,), p_t
    window: Window = NO_WINDOW


class AttentionGrads(NamedTuple):
    """Gradients of one step of attention; the last three are results."""

    d_context: Tensor  # (B, V)
    d_weights: Tensor  # (B, S)
    d_query: Tensor  # (B, H), of the query from elsewhere
    d_scores: Tensor  # (B, S)
    d_all: Tensor  # (B, H), of the query in all
    d_center: Tensor | None = None  # (B,), with a Gaussian window


class StepOps:
    """The operations in PyTorch, on any device; the reference for the others."""

    def lstm_gates(self, step: LSTMStep, h: Tensor, above: Tensor) -> None:
        """Compute c_t and h_t: writes `after`, `h`, and h with dropout to `above`, the input of the next layer.

        Afterwards `pre` holds the activated gates, unless it is in half precision.
        """
        pre, c, after, keep_mask, scale = step
        i, f, g, o = _activate_gates_(pre.to(c.dtype))
        torch.mul(i, g, out=after).addcmul_(f, c)
        torch.mul(o, after.tanh(), out=h)
        if above is not h:
            above.copy_(apply_dropout(h, keep_mask, scale))

    def lstm_gates_backward(self, step: LSTMStep, d_above: Tensor, d_h: Tensor, d_c: Tensor, d_pre: Tensor) -> None:
        """Compute `d_pre` from the gradients of h_t (`d_above`, `d_h`) and c_t (`d_c`, replaced by that of c_{t-1}).

        Each line is one pass over memory.
        """
        pre, c, after, keep_mask, scale = step
        i, f, g, o = pre.chunk(4, 1) if pre.dtype == c.dtype else _activate_gates_(pre.to(c.dtype))
        d_i, d_f, d_g, d_o = d_pre.chunk(4, 1)
        tanh_c, grad = after.tanh(), apply_dropout(d_above.to(c.dtype), keep_mask, scale) + d_h
        sigmoid_backward(grad * tanh_c, o, grad_input=d_o)
        d_c += tanh_backward(grad.mul_(o), tanh_c, grad_input=grad)
        sigmoid_backward(d_c * g, i, grad_input=d_i)
        sigmoid_backward(d_c * c, f, grad_input=d_f)
        tanh_backward(d_c * i, g, grad_input=d_g)
        d_c *= f

    def attention(self, step: AttentionStep, query: Tensor, context: Tensor) -> None:
        """Attend with a query (B, H): writes `weights` and `context` (B, V)."""
        keys, values, mask, weights, center, window = step
        scores = batched_matmul(query[:, None], keys.transpose(1, 2)).squeeze(1).to(weights.dtype)
        if center is not None:
            mask = mask & (_offset_from_center(center.floor(), mask.shape[1]).abs() <= window.radius)
        weights.copy_(masked_softmax(scores, mask))
        if center is not None and window.sigma:
            weights *= _gaussian(_offset_from_center(center, mask.shape[1]), window)
        context.copy_(batched_matmul(weights.to(values.dtype)[:, None], values).squeeze(1))

    def attention_backward(self, step: AttentionStep, grads: AttentionGrads) -> None:
        """Compute `d_scores` and `d_all` from the other gradients; with a Gaussian window also `d_center`."""
        keys, values, _, weights, center, window = step
        d_context, d_weights, d_query, d_scores, d_all, d_center = grads
        grad = batched_matmul(d_context[:, None], values.transpose(1, 2)).squeeze(1) + d_weights
        weighted, softmax = weights * grad, weights
        if center is not None and d_center is not None:
            offset = _offset_from_center(center, weights.shape[1])
            d_center.copy_((weighted * offset).sum(-1) / window.sigma**2)
            softmax = weights / _gaussian(offset, window).clamp(min=TINY)  # those of the softmax
        d_scores.copy_(weighted - softmax * weighted.sum(-1, keepdim=True))
        torch.add(batched_matmul(d_scores[:, None], keys).squeeze(1), d_query, out=d_all)

    def predict_center(self, u: Tensor, v: Tensor, lengths: Tensor, center: Tensor) -> None:
        """Compute `center` p_t = S·σ(vᵀ tanh u) (B,) from u (B, P) and sentence lengths S (B,)."""
        torch.mul(lengths, torch.sigmoid(torch.tanh(u) @ v), out=center)

    def predict_center_backward(
        self, d_center: Tensor, center: Tensor, lengths: Tensor, u: Tensor, v: Tensor, d_u: Tensor
    ) -> None:
        """Compute `d_u` from the gradient of the centre."""
        d_logit = d_center * center * (1 - center / lengths.clamp(min=1))  # S σ' = p (1 − p/S)
        torch.mul(d_logit[:, None] * v, 1 - torch.tanh(u) ** 2, out=d_u)

    def attention_weighted_sum(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return Σ_t w_ts x_t (B, S, V) of weights (B, T, S) and x (B, T, V)."""
        return batched_matmul(weights.transpose(1, 2), x)

    def attentional_tanh(self, z: Tensor, out: Tensor, fed: Tensor, keep_mask: Tensor | None, scale: float) -> None:
        """Compute `out` = tanh z, and `fed`, the same with dropout, the input of the next step."""
        out.copy_(torch.tanh(z))
        fed.copy_(apply_dropout(out, keep_mask, scale))

    def attentional_tanh_backward(
        self, d_out: Tensor, out: Tensor, d_fed: Tensor, keep_mask: Tensor | None, scale: float, d_z: Tensor
    ) -> None:
        """Compute `d_z` from the gradients of `out` and `fed`."""
        d_z.copy_((d_out + apply_dropout(d_fed, keep_mask, scale)) * (1 - out * out))


def _activate_gates_(pre: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Activate gates (B, 4H) in place, and return i, f, g, o."""
    in_and_forget, g, o = pre.tensor_split([pre.shape[1] // 2, pre.shape[1] // 4 * 3], 1)
    i, f = in_and_forget.sigmoid_().chunk(2, 1)
    return i, f, g.tanh_(), o.sigmoid_()


def _offset_from_center(center: Tensor, source_length: int) -> Tensor:
    """Return the distance of each source position from centres (B,): (B, S)."""
    return torch.arange(source_length, device=center.device) - center[:, None]


def _gaussian(offset: Tensor, window: Window) -> Tensor:
    """Return exp(−(s − p_t)² / 2σ²) (eq. 10)."""
    return torch.exp(-(offset**2) / (2 * window.sigma**2))


def apply_dropout(x: Tensor, keep_mask: Tensor | None, scale: float) -> Tensor:
    """Multiply by a dropout mask and its scale, if there is a mask."""
    return x if keep_mask is None else x * keep_mask * scale


def select_step_ops(x: Tensor, source_length: int) -> StepOps:
    """Return Triton kernels on a GPU for fp32 and half precision and sources of limited length, else PyTorch."""
    if x.is_cuda and x.dtype != torch.float64 and 0 < source_length <= MAX_SOURCE_LENGTH:
        return load_triton_step_ops(x.dtype, x.device)
    return StepOps()


@cache
def load_triton_step_ops(dtype: torch.dtype, device: torch.device) -> StepOps:
    """Return Triton kernels, or PyTorch's operations if the smallest kernel does not run, which is logged."""
    kernels = load_triton("regard.fast.kernels.triton.rnn", "recurrent decoder")
    if kernels is None:
        return StepOps()
    triton_ops: StepOps = kernels.TritonStepOps()
    z, out, fed = torch.zeros(3, 1, 16, dtype=dtype, device=device).unbind()
    is_working = runs_without_error("recurrent decoder", lambda: triton_ops.attentional_tanh(z, out, fed, None, 1.0))
    return triton_ops if is_working else StepOps()
