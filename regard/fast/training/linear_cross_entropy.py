"""Fused linear cross-entropy: the loss of an output layer without all its logits.

On a CPU logits exist for a chunk of rows at a time; on a GPU Triton kernels compute them
(`kernels/triton/cross_entropy.py`). The logits of a batch of 2,048 tokens and 8,000 words are 64 MB, which the
reference implementation writes and reads several times and allocates anew for each batch. Here a few hundred rows
exist at a time, the gradients of features and weights are taken while they do, and padding is left out.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.console import log_message
from regard.fast.eligibility import heard, here, precision, takes
from regard.fast.gemm import Products
from regard.fast.kernels.fp16 import multiplying
from regard.fast.selftest import succeeds
from regard.models.bahdanau2015 import BahdanauDecoder
from regard.models.base import Seq2Seq
from regard.models.cho2014 import ChoDecoder
from regard.models.losses import CrossEntropy, default_loss_sum
from regard.models.luong2015 import LuongDecoder
from regard.models.rnn_common import DeepOutput
from regard.models.sutskever2014 import SutskeverDecoder
from regard.models.vaswani2017 import TransformerDecoder
from regard.special_tokens import PAD

FIRST = 50  # batches that go the readable way: compiling kernels takes seconds, and is not to make a short run longer
DECODERS = (LuongDecoder, BahdanauDecoder, ChoDecoder, SutskeverDecoder, TransformerDecoder)


def covers(model: Seq2Seq) -> bool:
    """Whether this is a model whose output layer gives the logits, its loss cross-entropy, and nothing another's."""
    layer = last(model)
    known = (type(model), type(model.criterion)) == (Seq2Seq, CrossEntropy) and type(model.decoder) in DECODERS
    return known and layer is not None and all(type(part) is DeepOutput for part in above(model, layer)[1:-1])


def last(model: Seq2Seq) -> nn.Linear | None:
    """The output layer, which may have the embedding's matrix; None where a decoder does not say which it is."""
    found = next(reversed(model.decoder.vocabulary_layers()), None)
    return found if type(found) is nn.Linear else None


def above(model: Seq2Seq, layer: nn.Linear) -> list[nn.Module]:
    """What is not called as it is: from the decoder down to its output layer."""
    path = next(name for name, part in model.decoder.named_modules() if part is layer).split(".")
    return [model.decoder.get_submodule(".".join(path[:depth])) for depth in range(len(path) + 1)]


class Thin:
    """The loss of a batch, summed up; by the readable way where more is asked for than this one knows."""

    def __init__(self, obstacle: str | None = None) -> None:
        """`obstacle`: why a Transformer's batches are padded, which the first one of training says."""
        self.obstacle = obstacle
        self.batches = 0
        self.tried: dict[torch.dtype, bool] = {}  # whether the kernels do, by precision

    def __reduce__(self) -> tuple[type[Thin], tuple[str | None]]:
        """A copy begins anew."""
        return Thin, (self.obstacle,)

    def __call__(
        self,
        model: Seq2Seq,
        source: Tensor,
        lengths: Tensor,
        target_in: Tensor,
        target_out: Tensor,
        guide: Tensor | None,
    ) -> Tensor:
        """A scalar."""
        self.batches += model.training
        if self.obstacle is not None and self.batches == 1:
            say_padded(self.obstacle)
        layer = last(model) if guide is None and covers(model) else None
        losses = None if layer is None or heard(*above(model, layer)) else self.losses(model, layer)
        if layer is None or losses is None:
            return default_loss_sum(model, source, lengths, target_in, target_out, guide)
        settings, given = model.criterion.settings, (source, lengths, target_in, target_out)
        r_drop = settings.r_drop if model.training else 0.0
        source, lengths, target_in, target_out = (torch.cat([each, each]) for each in given) if r_drop else given
        features, _ = model.decoder.hidden_states(model.encode(source, lengths), target_in)
        h = features.flatten(0, 1).to(precision(layer.weight))
        return losses(h, layer.weight, layer.bias, target_out.flatten(), settings.label_smoothing, r_drop)

    def losses(self, model: Seq2Seq, layer: nn.Linear) -> LinearCrossEntropy | None:
        """Those for the device that a model is on."""
        weights = list(model.parameters())
        if here(weights):
            return None if model.training and model.criterion.settings.r_drop else losses
        ready = self.batches > FIRST and layer.weight.is_cuda and takes(weights)
        found, kind = triton_loss() if ready else None, precision(weights[0])
        if found is not None and model.training and kind not in self.tried:
            self.tried[kind] = works(found, layer, kind)
        return found if self.tried.get(kind) else None


def say_padded(obstacle: str) -> None:
    """Say why a Transformer is not trained in packed batches."""
    log_message(f"training pads its batches, which is slower: {obstacle}")


def works(losses: LinearCrossEntropy, layer: nn.Linear, kind: torch.dtype) -> bool:
    """Whether the kernels compile for this layer and this card, there and back."""
    h = layer.weight.new_zeros(32, layer.in_features, dtype=kind).requires_grad_()
    targets = torch.arange(32, device=h.device) % layer.out_features

    def loss(r_drop: float) -> Tensor:
        return losses(h, layer.weight.detach(), layer.bias, targets, 0.1, r_drop)

    return succeeds("the loss", lambda: torch.autograd.grad([loss(0.0), loss(1.0)], h))


@cache
def triton_loss() -> LinearCrossEntropy | None:
    """That of kernels, where there is Triton; where there is none, that is said once."""
    try:
        from regard.fast.kernels.triton import cross_entropy as fused
    except ImportError as error:
        log_message(f"the loss goes without kernels of its own: {error}")
        return None
    return fused.losses


class LinearCrossEntropy(Protocol):
    """The cross-entropy of an output layer, smoothed, and R-Drop's disagreement of two halves."""

    def __call__(
        self, h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, r_drop: float = 0.0
    ) -> Tensor:
        """H N,D; weight V,D; bias V; ids N, of which PAD counts for nothing -> a scalar, the sum."""
        ...


LOGITS = 2**23  # numbers, of which there are hardly more at a time
EVEN = 128  # rows, by which sums over them are quick
FEW = 256  # rows, for which it does not pay to lay weights out anew


def losses(
    h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, r_drop: float = 0.0
) -> Tensor:
    """Σ −log p(y), smoothed, of h N,D and ids N, of which PAD counts for nothing; it knows nothing of R-Drop."""
    assert not r_drop
    real = targets != PAD
    if not real.all():
        h, targets = h[real], targets[real]
    return ChunkedCrossEntropy.apply(h, weight, bias, targets, smoothing, torch.is_grad_enabled(), multiplying(h))  # type: ignore[no-untyped-call,no-any-return]


class ChunkedCrossEntropy(Function):
    """The sum, with all gradients, which are taken on the way."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        learns: bool,
        by: Products,
    ) -> Tensor:
        """A scalar."""
        rows = max(1, LOGITS // len(weight))
        rows = rows // EVEN * EVEN or rows
        place = h.new_empty(min(rows, len(h)), len(weight))
        dh = h.new_empty(h.shape) if learns else None
        dW = weight.new_zeros(weight.shape) if learns else None
        db = torch.zeros_like(bias) if learns and bias is not None else None
        total, often = h.new_zeros(()), by.often if len(h) > FEW else lambda b: b
        there, back = often(weight.t()), often(weight) if learns else None
        summed = entropy if by.between is None else by.between.entropy
        for first in range(0, len(h), rows):
            some = h[first : first + rows]
            logits = by.mm(some, there, out=place[: len(some)])
            if bias is not None:
                logits += bias
            total += summed(logits, targets[first : first + rows, None], smoothing)
            if dh is not None and dW is not None:
                by.mm(logits, back, out=dh[first : first + rows], most=1.0)  # differences of probabilities
                by.add(dW, logits.t(), some, most=1.0)
            if db is not None:
                db += logits.sum(0)
        ctx.save_for_backward(dh, dW, db)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        """What is there already, as much as is asked for."""
        return *(None if slope is None else slope * by for slope in ctx.saved_tensors), None, None, None, None


def entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """The loss of logits N,V and ids N,1, summed up; in the place of the logits it leaves their gradients."""
    V = logits.shape[1]
    logits -= logits.amax(1, keepdim=True)
    wanted = (1 - smoothing) * logits.gather(1, targets)
    if smoothing:
        wanted += smoothing * logits.mean(1, keepdim=True)
    whole = logits.exp_().sum(1, keepdim=True)
    logits /= whole
    if smoothing:
        logits -= smoothing / V
    logits.scatter_add_(1, targets, logits.new_full((), smoothing - 1).expand_as(targets))
    return (whole.log() - wanted).sum()
