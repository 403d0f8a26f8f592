"""Operations between the matrix products of recurrent decoders: LSTM gates, attention, tanh.

Each has a forward and a backward pass, in PyTorch here and as Triton kernels in `regard.fast.kernels.triton.rnn`,
with the same signatures and results. All write to buffers of the caller, so that results are where the next matrix
product reads them. Sums are at least fp32.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from regard.fast.gemm import batched_matmul
from regard.nn import masked_softmax

sigmoid_backward, tanh_backward = torch.ops.aten.sigmoid_backward.grad_input, torch.ops.aten.tanh_backward.grad_input
MAX_SOURCE_LENGTH = 1024  # source positions; a kernel has the scores of all of them at hand


class Window(NamedTuple):
    """Window of local attention around its centre p_t (Luong 2015, section 3.2)."""

    radius: int = 0  # D, positions to each side of ⌊p_t⌋; 0: there is no window
    sigma: float = 0.0  # of the Gaussian around p_t; 0: there is none


NO_WINDOW = Window()
TINY = 1e-30  # less than a Gaussian of σ = D/2 is anywhere within its window


class StepOps(Protocol):
    """Interface of the operations; `keep_mask` is a dropout mask (None: no dropout), `scale` its factor 1 / (1 − p)."""

    def lstm_gates(
        self, pre: Tensor, c: Tensor, after: Tensor, h: Tensor, above: Tensor, keep_mask: Tensor | None, scale: float
    ) -> None:
        """Compute c_t and h_t from gate pre-activations (B, 4H) and c_{t-1} (B, H).

        Writes `after` = c_t, `h`, and h with dropout to `above`, the input of the next layer.
        """
        ...

    def lstm_gates_backward(
        self,
        pre: Tensor,
        c: Tensor,
        after: Tensor,
        d_above: Tensor,
        keep_mask: Tensor | None,
        scale: float,
        d_h: Tensor,
        d_c: Tensor,
        d_pre: Tensor,
    ) -> None:
        """Compute `d_pre` from the gradients of h_t (`d_above`, `d_h`) and c_t (`d_c`, replaced by that of c_{t-1})."""
        ...

    def attention(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        weights: Tensor,
        context: Tensor,
        center: Tensor | None = None,
        window: Window = NO_WINDOW,
    ) -> None:
        """Attend with a query (B, H) over keys (B, S, H): `weights` (B, S), 0 where masked, and `context` (B, V).

        With a `center` p_t (B,) attention is restricted to a window around it.
        """
        ...

    def attention_backward(
        self,
        d_context: Tensor,
        d_weights: Tensor,
        weights: Tensor,
        keys: Tensor,
        values: Tensor,
        d_query: Tensor,
        d_scores: Tensor,
        d_all: Tensor,
        center: Tensor | None = None,
        window: Window = NO_WINDOW,
        d_center: Tensor | None = None,
    ) -> None:
        """Compute `d_scores` and the gradient of the query plus `d_query` (to `d_all`).

        With a Gaussian window also `d_center` (B,).
        """
        ...

    def predict_center(self, u: Tensor, v: Tensor, lengths: Tensor, center: Tensor) -> None:
        """Compute `center` p_t = S·σ(vᵀ tanh u) (B,) from u (B, P) and sentence lengths S (B,)."""
        ...

    def predict_center_backward(
        self, d_center: Tensor, center: Tensor, lengths: Tensor, u: Tensor, v: Tensor, d_u: Tensor
    ) -> None:
        """Compute `d_u` from the gradient of the centre."""
        ...

    def attention_weighted_sum(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return Σ_t w_ts x_t (B, S, V) of weights (B, T, S) and x (B, T, V)."""
        ...

    def attentional_tanh(self, z: Tensor, out: Tensor, fed: Tensor, keep_mask: Tensor | None, scale: float) -> None:
        """Compute `out` = tanh z, and `fed`, the same with dropout, the input of the next step."""
        ...

    def attentional_tanh_backward(
        self, d_out: Tensor, out: Tensor, d_fed: Tensor, keep_mask: Tensor | None, scale: float, d_z: Tensor
    ) -> None:
        """Compute `d_z` from the gradients of `out` and `fed`."""
        ...


class TorchStepOps:
    """The operations in PyTorch, on any device; the reference for the others."""

    def lstm_gates(
        self, pre: Tensor, c: Tensor, after: Tensor, h: Tensor, above: Tensor, keep_mask: Tensor | None, scale: float
    ) -> None:
        """See `StepOps`."""
        i, f, g, o = pre.to(c.dtype).chunk(4, -1)
        torch.add(torch.sigmoid(f) * c, torch.sigmoid(i) * torch.tanh(g), out=after)
        new_h = torch.sigmoid(o) * torch.tanh(after)
        h.copy_(new_h)
        above.copy_(apply_dropout(new_h, keep_mask, scale))

    def lstm_gates_backward(
        self,
        pre: Tensor,
        c: Tensor,
        after: Tensor,
        d_above: Tensor,
        keep_mask: Tensor | None,
        scale: float,
        d_h: Tensor,
        d_c: Tensor,
        d_pre: Tensor,
    ) -> None:
        """See `StepOps`."""
        i, f, g, o = pre.to(c.dtype).chunk(4, -1)
        i, f, g, o, tanh_c = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o), torch.tanh(after)
        grad = apply_dropout(d_above.to(c.dtype), keep_mask, scale) + d_h
        d_c += grad * o * (1 - tanh_c * tanh_c)
        parts = (d_c * g * i * (1 - i), d_c * c * f * (1 - f), d_c * i * (1 - g * g), grad * tanh_c * o * (1 - o))
        d_pre.copy_(torch.cat(parts, -1))
        d_c *= f

    def attention(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        weights: Tensor,
        context: Tensor,
        center: Tensor | None = None,
        window: Window = NO_WINDOW,
    ) -> None:
        """See `StepOps`."""
        scores = batched_matmul(query[:, None], keys.transpose(1, 2)).squeeze(1).to(weights.dtype)
        if center is not None:
            mask = mask & (_offset_from_center(center.floor(), mask.shape[1]).abs() <= window.radius)
        weights.copy_(masked_softmax(scores, mask))
        if center is not None and window.sigma:
            weights *= _gaussian(_offset_from_center(center, mask.shape[1]), window)
        context.copy_(batched_matmul(weights.to(values.dtype)[:, None], values).squeeze(1))

    def attention_backward(
        self,
        d_context: Tensor,
        d_weights: Tensor,
        weights: Tensor,
        keys: Tensor,
        values: Tensor,
        d_query: Tensor,
        d_scores: Tensor,
        d_all: Tensor,
        center: Tensor | None = None,
        window: Window = NO_WINDOW,
        d_center: Tensor | None = None,
    ) -> None:
        """See `StepOps`."""
        grad = batched_matmul(d_context[:, None], values.transpose(1, 2)).squeeze(1) + d_weights
        weighted, softmax = weights * grad, weights
        if center is not None and d_center is not None:
            offset = _offset_from_center(center, weights.shape[1])
            d_center.copy_((weighted * offset).sum(-1) / window.sigma**2)
            softmax = weights / _gaussian(offset, window).clamp(min=TINY)  # those of the softmax
        d_scores.copy_(weighted - softmax * weighted.sum(-1, keepdim=True))
        torch.add(batched_matmul(d_scores[:, None], keys).squeeze(1), d_query, out=d_all)

    def predict_center(self, u: Tensor, v: Tensor, lengths: Tensor, center: Tensor) -> None:
        """See `StepOps`."""
        torch.mul(lengths, torch.sigmoid(torch.tanh(u) @ v), out=center)

    def predict_center_backward(
        self, d_center: Tensor, center: Tensor, lengths: Tensor, u: Tensor, v: Tensor, d_u: Tensor
    ) -> None:
        """See `StepOps`."""
        d_logit = d_center * center * (1 - center / lengths.clamp(min=1))  # S σ' = p (1 − p/S)
        torch.mul(d_logit[:, None] * v, 1 - torch.tanh(u) ** 2, out=d_u)

    def attention_weighted_sum(self, weights: Tensor, x: Tensor) -> Tensor:
        """See `StepOps`."""
        return batched_matmul(weights.transpose(1, 2), x)

    def attentional_tanh(self, z: Tensor, out: Tensor, fed: Tensor, keep_mask: Tensor | None, scale: float) -> None:
        """See `StepOps`."""
        out.copy_(torch.tanh(z))
        fed.copy_(apply_dropout(out, keep_mask, scale))

    def attentional_tanh_backward(
        self, d_out: Tensor, out: Tensor, d_fed: Tensor, keep_mask: Tensor | None, scale: float, d_z: Tensor
    ) -> None:
        """See `StepOps`."""
        d_z.copy_((d_out + apply_dropout(d_fed, keep_mask, scale)) * (1 - out * out))


class InplaceStepOps(TorchStepOps):
    """The operations with fewer passes over memory, for one dtype: gates are activated in place.

    The backward pass reads the activated gates, and each of its lines is one operation of PyTorch.
    """

    def lstm_gates(
        self, pre: Tensor, c: Tensor, after: Tensor, h: Tensor, above: Tensor, keep_mask: Tensor | None, scale: float
    ) -> None:
        """See `StepOps`; afterwards `pre` holds the activated gates."""
        in_and_forget, g, o = pre.tensor_split([pre.shape[1] // 2, pre.shape[1] // 4 * 3], 1)
        i, f = in_and_forget.sigmoid_().chunk(2, 1)
        torch.mul(i, g.tanh_(), out=after).addcmul_(f, c)
        torch.mul(o.sigmoid_(), after.tanh(), out=h)
        if above is not h:
            above.copy_(apply_dropout(h, keep_mask, scale))

    def lstm_gates_backward(
        self,
        pre: Tensor,
        c: Tensor,
        after: Tensor,
        d_above: Tensor,
        keep_mask: Tensor | None,
        scale: float,
        d_h: Tensor,
        d_c: Tensor,
        d_pre: Tensor,
    ) -> None:
        """See `StepOps`; `pre` holds the activated gates."""
        (i, f, g, o), (d_i, d_f, d_g, d_o) = pre.chunk(4, 1), d_pre.chunk(4, 1)
        tanh_c, grad = after.tanh(), apply_dropout(d_above, keep_mask, scale) + d_h
        sigmoid_backward(grad * tanh_c, o, grad_input=d_o)
        d_c += tanh_backward(grad.mul_(o), tanh_c, grad_input=grad)
        sigmoid_backward(d_c * g, i, grad_input=d_i)
        sigmoid_backward(d_c * c, f, grad_input=d_f)
        tanh_backward(d_c * i, g, grad_input=d_g)
        d_c *= f


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
        return load_triton_step_ops()
    is_plain_cpu = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    return InplaceStepOps() if is_plain_cpu else TorchStepOps()


@cache
def load_triton_step_ops() -> StepOps:
    """Return the Triton kernels if Triton is installed; cached, because the import is slow."""
    if find_spec("triton") is None:
        return TorchStepOps()
    from regard.fast.kernels.triton.rnn import TritonStepOps

    return cast(StepOps, TritonStepOps())
