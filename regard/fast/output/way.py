"""When the loss of an output layer is taken without all its logits: unguided, on a CPU, or by Triton on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from regard.console import log_message
from regard.fast.hearing import heard
from regard.fast.output import rows
from regard.fast.output.parts import Losses
from regard.fast.trial import succeeds
from regard.models.bahdanau2015 import BahdanauDecoder
from regard.models.base import Seq2Seq
from regard.models.cho2014 import ChoDecoder
from regard.models.losses import CrossEntropy, default_loss_sum
from regard.models.luong2015 import LuongDecoder
from regard.models.rnn_common import DeepOutput
from regard.models.sutskever2014 import SutskeverDecoder
from regard.models.vaswani2017 import TransformerDecoder

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

    def losses(self, model: Seq2Seq, layer: nn.Linear) -> Losses | None:
        """Those for the device that a model is on."""
        weights = list(model.parameters())
        if here(weights):
            return None if model.training and model.criterion.settings.r_drop else rows.losses
        ready = self.batches > FIRST and layer.weight.is_cuda and takes(weights)
        found, kind = fused() if ready else None, precision(weights[0])
        if found is not None and model.training and kind not in self.tried:
            self.tried[kind] = works(found, layer, kind)
        return found if self.tried.get(kind) else None


def say_padded(obstacle: str) -> None:
    """Say why a Transformer is not trained in packed batches."""
    log_message(f"training pads its batches, which is slower: {obstacle}")


def here(weights: Sequence[Tensor]) -> bool:
    """Whether a model's are on a CPU, whole, not in parts among processes, and in single precision at the least."""
    wide = weights[0].dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return whole(weights) and wide and weights[0].device.type == "cpu"


def takes(weights: Sequence[Tensor]) -> bool:
    """Whether all are here whole, and counted with as kernels do."""
    return whole(weights) and precision(weights[0]) in (torch.float32, torch.bfloat16)


def whole(weights: Sequence[Tensor]) -> bool:
    """Whether none is in parts among processes."""
    return all(type(weight) is nn.Parameter for weight in weights)


def precision(weight: Tensor) -> torch.dtype:
    """What matrix products with a weight are to be counted in."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def works(losses: Losses, layer: nn.Linear, kind: torch.dtype) -> bool:
    """Whether the kernels compile for this layer and this card, there and back."""
    h = layer.weight.new_zeros(32, layer.in_features, dtype=kind).requires_grad_()
    targets = torch.arange(32, device=h.device) % layer.out_features

    def loss(r_drop: float) -> Tensor:
        return losses(h, layer.weight.detach(), layer.bias, targets, 0.1, r_drop)

    return succeeds("the loss", lambda: torch.autograd.grad([loss(0.0), loss(1.0)], h))


@cache
def fused() -> Losses | None:
    """That of kernels, where there is Triton; where there is none, that is said once."""
    try:
        from regard.fast.output import fused
    except ImportError as error:
        log_message(f"the loss goes without kernels of its own: {error}")
        return None
    return fused.losses
