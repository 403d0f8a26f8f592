"""An output layer and its cross-entropy, some rows at a time: on a CPU, where logits of a whole batch fit no cache.

Of a batch of 2,048 tokens and 8,000 words they are 64 MB, which the readable way writes and reads several times, and
for which the system hands out new pages each time. Here a few hundred rows of them exist at a time, the gradients of
what the layer reads and of its weights are taken while they do, and what is padding is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard.models import seq2seq
from regard.models.bahdanau import BahdanauDecoder
from regard.models.cho import ChoDecoder
from regard.models.luong import LuongDecoder
from regard.models.seq2seq import Decoded, Seq2Seq
from regard.models.sutskever import SutskeverDecoder
from regard.models.transformer import TransformerDecoder
from regard.symbols import PAD

LOCK = Lock()  # one thread at a time trains
LOGITS = 2**21  # numbers, of which there are hardly more at a time
DECODERS = (LuongDecoder, BahdanauDecoder, ChoDecoder, SutskeverDecoder, TransformerDecoder)


def covers(model: Seq2Seq) -> bool:
    """Whether what the output layer gives are the logits, and nobody but the loss reads them."""
    return type(model) is Seq2Seq and type(model.decoder) in DECODERS and type(last(model)) is nn.Linear


def last(model: Seq2Seq) -> nn.Module | None:
    """The output layer, which may have the embedding's matrix; None where a decoder does not say which it is."""
    return next(reversed(model.decoder.vocabulary()), None)


def added_up(
    model: Seq2Seq, source: Tensor, lengths: Tensor, target_in: Tensor, target_out: Tensor, guide: Tensor | None
) -> Tensor:
    """The loss of a batch, summed up; by the readable way on a GPU, and where more is asked for than cross-entropy."""
    layer, settings = last(model), model.criterion.settings
    more = guide is not None or (model.training and settings.r_drop)
    if more or not covers(model) or not here(model) or not isinstance(layer, nn.Linear) or heard(layer):
        return seq2seq.added_up(model, source, lengths, target_in, target_out, guide)
    with passing(layer):
        decoded: Decoded = model.decoder(model.encode(source, lengths), target_in)
    h = decoded.logits.flatten(0, 1)  # what the layer was to read
    return losses(h, layer.weight, layer.bias, target_out.flatten(), settings.label_smoothing)


def heard(part: nn.Module) -> bool:
    """Whether somebody listens to what a part is given or gives, or does it in another way."""
    return bool(
        part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        or "forward" in part.__dict__
    )


def here(model: Seq2Seq) -> bool:
    """Whether it is on a CPU, whole, not in parts among processes, and in single precision at the least."""
    weights = list(model.parameters())
    whole = all(type(weight) is nn.Parameter for weight in weights)
    wide = weights[0].dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return whole and wide and weights[0].device.type == "cpu"


@contextmanager
def passing(layer: nn.Linear) -> Iterator[None]:
    """A layer that gives what it reads, meanwhile, to this thread."""
    own = get_ident()
    with LOCK:
        layer.__dict__["forward"] = lambda x: x if get_ident() == own else F.linear(x, layer.weight, layer.bias)
        try:
            yield
        finally:
            del layer.__dict__["forward"]


def losses(h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float) -> Tensor:
    """Σ −log p(y), smoothed, of h N,D and ids N, of which PAD counts for nothing."""
    real = targets != PAD
    if not real.all():
        h, targets = h[real], targets[real]
    return Losses.apply(h, weight, bias, targets, smoothing, torch.is_grad_enabled())  # type: ignore[no-untyped-call,no-any-return]


class Losses(Function):
    """The sum, with all gradients, which are taken on the way."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, learns: bool
    ) -> Tensor:
        """A scalar."""
        rows = max(1, LOGITS // len(weight))
        place = h.new_empty(min(rows, len(h)), len(weight))
        dh = torch.empty_like(h) if learns else None
        dW = torch.zeros_like(weight) if learns else None
        db = torch.zeros_like(bias) if learns and bias is not None else None
        total = h.new_zeros(())
        for first in range(0, len(h), rows):
            some = h[first : first + rows]
            logits = torch.mm(some, weight.t(), out=place[: len(some)])
            if bias is not None:
                logits += bias
            total += entropy(logits, targets[first : first + rows, None], smoothing)
            if dh is not None and dW is not None:
                torch.mm(logits, weight, out=dh[first : first + rows])
                dW.addmm_(logits.t(), some)
            if db is not None:
                db += logits.sum(0)
        ctx.save_for_backward(dh, dW, db)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        """What is there already, as much as is asked for."""
        return *(None if slope is None else slope * by for slope in ctx.saved_tensors), None, None, None


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
