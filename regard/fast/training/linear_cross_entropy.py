"""Fused linear cross-entropy: the loss of an output layer without all its logits.

On a CPU logits exist for a chunk of rows at a time; on a GPU Triton kernels compute them
(`kernels/triton/cross_entropy.py`). The logits of a batch of 2,048 tokens and 8,000 words are 64 MB, which the
reference implementation writes and reads several times and allocates anew for each batch. Here a few hundred rows
exist at a time, the gradients of features and weights are taken while they do, and padding is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.console import log_message
from regard.fast.eligibility import compute_dtype, has_hooks_or_overrides, is_cpu_model
from regard.fast.gemm import Gemm
from regard.fast.kernels.fp16 import select_gemm
from regard.fast.selftest import TritonKernels
from regard.models.bahdanau2015 import BahdanauDecoder
from regard.models.base import CrossEntropy, Seq2Seq, default_loss_sum
from regard.models.cho2014 import ChoDecoder
from regard.models.luong2015 import LuongDecoder
from regard.models.rnn_common import DeepOutput
from regard.models.sutskever2014 import SutskeverDecoder
from regard.models.vaswani2017 import TransformerDecoder
from regard.special_tokens import PAD

# Label-smoothed cross-entropy of h (N, D), weight (V, D), bias (V,), ids (N,), smoothing and R-Drop's weight (of two
# halves of a batch): the sum, ignoring PAD.
LinearCrossEntropy = Callable[[Tensor, Tensor, Tensor | None, Tensor, float, float], Tensor]
LossAndGradients = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]  # the gradients of h, weight and bias
PaddedBatch = tuple[Tensor, Tensor, Tensor, Tensor]  # source (B, S), lengths (B,), target_in and target_out (B, T)
DECODERS = (LuongDecoder, BahdanauDecoder, ChoDecoder, SutskeverDecoder, TransformerDecoder)


def is_supported(model: Seq2Seq) -> bool:
    """Return whether the output layer of this model can be fused with the loss."""
    layer = find_output_layer(model)
    if (type(model), type(model.criterion)) != (Seq2Seq, CrossEntropy) or type(model.decoder) not in DECODERS:
        return False
    return layer is not None and all(type(part) is DeepOutput for part in _modules_on_path(model, layer)[1:-1])


def find_output_layer(model: Seq2Seq) -> nn.Linear | None:
    """Return the output layer, which may share the embedding's matrix, or None if the decoder does not name it."""
    found = next(reversed(model.decoder.vocabulary_layers()), None)
    return found if type(found) is nn.Linear else None


def _modules_on_path(model: Seq2Seq, layer: nn.Linear) -> list[nn.Module]:
    """List the modules from the decoder down to its output layer, which are not called."""
    path = next(name for name, part in model.decoder.named_modules() if part is layer).split(".")
    return [model.decoder.get_submodule(".".join(path[:depth])) for depth in range(len(path) + 1)]


class KernelLoss:
    """Summed loss of a batch by kernels; the reference loss for everything that they do not support."""

    def __init__(self, purpose: str, kernels: str, padding_reason: str | None = None) -> None:
        """`padding_reason`: why a Transformer's batches are padded, logged at the first training batch."""
        self.kernels = TritonKernels(purpose, kernels)
        self.padding_reason = padding_reason
        self.has_logged_padding = False

    def __call__(self, model: Seq2Seq, *inputs: Tensor | None) -> Tensor:
        """Return the summed loss, given the arguments of `Seq2Seq.loss_sum`."""
        if self.padding_reason is not None and model.training:
            self.log_padding(self.padding_reason)
        *batch, guide = inputs
        loss = self.compute(model, tuple(batch)) if guide is None else None  # type: ignore[arg-type]
        return default_loss_sum(model, *inputs) if loss is None else loss  # type: ignore[arg-type]

    def compute(self, model: Seq2Seq, batch: PaddedBatch) -> Tensor | None:
        """Return the loss, or None if it is not supported."""
        raise NotImplementedError

    def log_padding(self, obstacle: str) -> None:
        """Log once why a Transformer is not trained in packed batches."""
        if not self.has_logged_padding:
            log_message(f"training pads its batches, which is slower: {obstacle}")
        self.has_logged_padding = True


class ChunkedLoss(KernelLoss):
    """Loss without all logits of a batch."""

    def __init__(self, padding_reason: str | None = None) -> None:
        super().__init__("linear cross-entropy", "regard.fast.kernels.triton.cross_entropy", padding_reason)

    def __reduce__(self) -> tuple[type[ChunkedLoss], tuple[str | None]]:
        """Copies start without results of self-tests."""
        return ChunkedLoss, (self.padding_reason,)

    def compute(self, model: Seq2Seq, batch: PaddedBatch) -> Tensor | None:
        """Return the loss of a supported model whose output layer is unmodified."""
        layer = find_output_layer(model) if is_supported(model) else None
        if layer is None or has_hooks_or_overrides(*_modules_on_path(model, layer)):
            return None
        loss_fn, criterion = self._select_loss(model, layer), model.criterion
        if loss_fn is None:
            return None
        r_drop = criterion.r_drop if model.training else 0.0
        source, lengths, target_in, target_out = (torch.cat([tensor, tensor]) for tensor in batch) if r_drop else batch
        features, _ = model.decoder.hidden_states(model.encode(source, lengths), target_in)
        h = features.flatten(0, 1).to(compute_dtype(layer.weight))
        return loss_fn(h, layer.weight, layer.bias, target_out.flatten(), criterion.label_smoothing, r_drop)

    def _select_loss(self, model: Seq2Seq, layer: nn.Linear) -> LinearCrossEntropy | None:
        """Return the loss for the device of a model, or None."""
        weights = list(model.parameters())
        if is_cpu_model(weights):
            return None if model.training and model.criterion.r_drop else cross_entropy_in_chunks
        is_training = torch.is_grad_enabled() and model.training
        kernels = self.kernels.select(weights, is_training, partial(_try_kernels, layer))
        return None if kernels is None else kernels.linear_cross_entropy


def _try_kernels(layer: nn.Linear, kernels: Any) -> None:
    """Run the kernels for this layer and GPU, forward and backward."""
    loss_fn: LinearCrossEntropy = kernels.linear_cross_entropy
    h = layer.weight.new_zeros(32, layer.in_features, dtype=compute_dtype(layer.weight)).requires_grad_()
    targets = torch.arange(32, device=h.device) % layer.out_features
    losses = [loss_fn(h, layer.weight.detach(), layer.bias, targets, 0.1, r_drop) for r_drop in (0.0, 1.0)]
    torch.autograd.grad(losses, h)


MAX_LOGITS = 2**23  # logits in memory
ROW_MULTIPLE = 128  # chunks are multiples of it, for fast sums over rows
MAX_UNPACKED_ROWS = 256  # rows for which repacking weights does not pay


def cross_entropy_in_chunks(
    h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, r_drop: float = 0.0
) -> Tensor:
    """Return the summed, label-smoothed cross-entropy of h (N, D) and ids (N,), ignoring PAD, without R-Drop."""
    assert not r_drop
    is_token = targets != PAD
    if not is_token.all():
        h, targets = h[is_token], targets[is_token]
    has_grad = torch.is_grad_enabled()
    compute = partial(compute_in_chunks, targets=targets, smoothing=smoothing, has_grad=has_grad, gemm=select_gemm(h))
    return LossFunction.apply(compute, h, weight, bias)  # type: ignore[no-untyped-call,no-any-return]


class LossFunction(Function):
    """Loss of h, weight and bias whose gradients are computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[..., LossAndGradients], *inputs: Tensor | None) -> Tensor:
        """Return the loss."""
        loss, *gradients = compute(*inputs)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the forward pass, scaled."""
        return None, *(None if grad is None else _scale_gradient(grad, scale) for grad in ctx.saved_tensors)


def _scale_gradient(grad: Tensor, scale: Tensor) -> Tensor:
    """Multiply in the wider of both dtypes."""
    return (grad.to(torch.promote_types(grad.dtype, scale.dtype)) * scale).to(grad.dtype)


def compute_in_chunks(
    h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, has_grad: bool, gemm: Gemm
) -> LossAndGradients:
    """Return the summed loss, and the gradients of h, weight and bias."""
    chunk_rows = max(1, MAX_LOGITS // len(weight))
    chunk_rows = chunk_rows // ROW_MULTIPLE * ROW_MULTIPLE or chunk_rows
    buffer = h.new_empty(min(chunk_rows, len(h)), len(weight))
    grad_h = h.new_empty(h.shape) if has_grad else None
    grad_weight = weight.new_zeros(weight.shape) if has_grad else None
    grad_bias = torch.zeros_like(bias) if has_grad and bias is not None else None
    total, prepack = h.new_zeros(()), gemm.prepack if len(h) > MAX_UNPACKED_ROWS else lambda b: b
    weight_t, weight_rows = prepack(weight.t()), prepack(weight) if has_grad else None
    chunk_loss = cross_entropy_inplace if gemm.elementwise is None else gemm.elementwise.cross_entropy
    for first in range(0, len(h), chunk_rows):
        chunk = h[first : first + chunk_rows]
        logits = gemm.mm(chunk, weight_t, out=buffer[: len(chunk)])
        if bias is not None:
            logits += bias
        total += chunk_loss(logits, targets[first : first + chunk_rows, None], smoothing)
        if grad_h is not None and grad_weight is not None:
            # Logits are differences of probabilities here.
            gemm.mm(logits, weight_rows, out=grad_h[first : first + chunk_rows], max_abs=1.0)
            gemm.add_mm(grad_weight, logits.t(), chunk, max_abs=1.0)
        if grad_bias is not None:
            grad_bias += logits.sum(0)
    return total, grad_h, grad_weight, grad_bias


def cross_entropy_inplace(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Return the summed loss of logits (N, V) and ids (N, 1), and replace the logits by their gradients."""
    V = logits.shape[1]
    logits -= logits.amax(1, keepdim=True)
    target_term = (1 - smoothing) * logits.gather(1, targets)
    if smoothing:
        target_term += smoothing * logits.mean(1, keepdim=True)
    normalizer = logits.exp_().sum(1, keepdim=True)
    logits /= normalizer
    if smoothing:
        logits -= smoothing / V
    logits.scatter_add_(1, targets, logits.new_full((), smoothing - 1).expand_as(targets))
    return (normalizer.log() - target_term).sum()
