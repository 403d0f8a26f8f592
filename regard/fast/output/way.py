"""When the loss of an output layer is taken without all its logits: unguided, on a CPU, or by Triton on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock, get_ident
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.console import say
from regard.fast.output import rows
from regard.models import seq2seq
from regard.models.bahdanau import BahdanauDecoder
from regard.models.cho import ChoDecoder
from regard.models.luong import LuongDecoder
from regard.models.seq2seq import Decoded, Seq2Seq
from regard.models.sutskever import SutskeverDecoder
from regard.models.transformer import TransformerDecoder

FIRST = 50  # batches that go the readable way: compiling kernels takes seconds, and is not to make a short run longer
LOCK = Lock()  # one thread at a time trains
DECODERS = (LuongDecoder, BahdanauDecoder, ChoDecoder, SutskeverDecoder, TransformerDecoder)


class Losses(Protocol):
    """The cross-entropy of an output layer, smoothed, and R-Drop's disagreement of two halves."""

    def __call__(
        self, h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, r_drop: float = 0.0
    ) -> Tensor:
        """H N,D; weight V,D; bias V; ids N, of which PAD counts for nothing -> a scalar, the sum."""
        ...


def covers(model: Seq2Seq) -> bool:
    """Whether what the output layer gives are the logits, and nobody but the loss reads them."""
    return type(model) is Seq2Seq and type(model.decoder) in DECODERS and last(model) is not None


def last(model: Seq2Seq) -> nn.Linear | None:
    """The output layer, which may have the embedding's matrix; None where a decoder does not say which it is."""
    found = next(reversed(model.decoder.vocabulary()), None)
    return found if type(found) is nn.Linear else None


class Thin:
    """The loss of a batch, summed up; by the readable way where more is asked for than this one knows."""

    def __init__(self) -> None:
        self.batches = 0
        self.tried: dict[torch.dtype, bool] = {}  # whether the kernels do, by precision

    def __reduce__(self) -> tuple[type[Thin], tuple[()]]:
        """A copy begins anew."""
        return Thin, ()

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
        layer = last(model) if guide is None and covers(model) else None
        losses = None if layer is None or heard(layer) else self.losses(model, layer)
        if layer is None or losses is None:
            return seq2seq.added_up(model, source, lengths, target_in, target_out, guide)
        settings, given = model.criterion.settings, (source, lengths, target_in, target_out)
        r_drop = settings.r_drop if model.training else 0.0
        source, lengths, target_in, target_out = (torch.cat([each, each]) for each in given) if r_drop else given
        with passing(layer):
            decoded: Decoded = model.decoder(model.encode(source, lengths), target_in)
        h = decoded.logits.flatten(0, 1).to(precision(model))  # what the layer was to read
        return losses(h, layer.weight, layer.bias, target_out.flatten(), settings.label_smoothing, r_drop)

    def losses(self, model: Seq2Seq, layer: nn.Linear) -> Losses | None:
        """Those for the device that a model is on."""
        if here(model):
            return None if model.training and model.criterion.settings.r_drop else rows.losses
        ready = self.batches > FIRST and layer.weight.is_cuda and takes(model)
        found, kind = fused() if ready else None, precision(model)
        if found is not None and model.training and kind not in self.tried:
            self.tried[kind] = works(found, layer, kind)
        return found if self.tried.get(kind) else None


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
    wide = weights[0].dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return whole(model) and wide and weights[0].device.type == "cpu"


def takes(model: Seq2Seq) -> bool:
    """Whether all weights are here whole, and counted with as kernels do."""
    return whole(model) and precision(model) in (torch.float32, torch.bfloat16)


def whole(model: Seq2Seq) -> bool:
    """Whether no weight is in parts among processes."""
    return all(type(weight) is nn.Parameter for weight in model.parameters())


def precision(model: Seq2Seq) -> torch.dtype:
    """What matrix products are to be counted in."""
    weight = next(model.parameters())
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


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


def works(losses: Losses, layer: nn.Linear, kind: torch.dtype) -> bool:
    """Whether the kernels compile for this layer and this card, there and back; if not, that is said."""
    h = layer.weight.new_zeros(32, layer.in_features, dtype=kind).requires_grad_()
    targets = torch.arange(32, device=h.device) % layer.out_features
    try:
        for r_drop in (0.0, 1.0):
            torch.autograd.grad(losses(h, layer.weight.detach(), layer.bias, targets, 0.1, r_drop), h)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton has many ways to fail, and its own errors
        say(f"the loss goes without kernels of its own: {' '.join(str(error).split())[:200]}")
        return False
    return True


@cache
def fused() -> Losses | None:
    """That of kernels, where there is Triton; where there is none, that is said once."""
    try:
        from regard.fast.output import fused
    except ImportError as error:
        say(f"the loss goes without kernels of its own: {error}")
        return None
    return fused.losses
