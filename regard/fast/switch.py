"""Which models take the faster ways."""

from __future__ import annotations

import os
from functools import partial
from typing import TypeVar

import torch
from torch import nn

from regard.fast.cached import cached
from regard.fast.decoding import way as decoding
from regard.fast.feeding.way import looped
from regard.fast.layer import unrolled
from regard.fast.looping import recorded
from regard.fast.output import way as output
from regard.fast.packed import way
from regard.models.bahdanau import BahdanauDecoder
from regard.models.hard import HardDecoder
from regard.models.luong import LuongDecoder
from regard.models.seq2seq import Seq2Seq
from regard.models.stepping import Loop, one_by_one
from regard.models.transformer import TransformerDecoder
from regard.models.xu import XuDecoder
from regard.nn import Recurrent

M = TypeVar("M", bound=nn.Module)
# Of these decoders themselves: what is derived from one may do something else in a step.
LOOPS: dict[type[nn.Module], Loop] = {
    LuongDecoder: looped,
    BahdanauDecoder: partial(recorded, one_by_one),
    XuDecoder: partial(recorded, one_by_one),
    HardDecoder: partial(recorded, one_by_one),
}


def quicken(model: M) -> M:
    """The same model: recurrent layers and loops by kernels for the device, a Transformer's loss without padding and
    its steps without copies, any other's loss over some rows of logits at a time, searches on the device."""
    if wanted():
        torch.backends.cudnn.allow_tf32 = False  # fp32 is fp32 by either way
        for module in model.modules():
            if isinstance(module, Recurrent):
                module.unroll = unrolled
            elif type(module) in LOOPS:
                module.loop = LOOPS[type(module)]  # type: ignore[assignment]
        if isinstance(model, Seq2Seq) and way.covers(model):
            model.way = way.Packed()
        elif isinstance(model, Seq2Seq) and output.covers(model):
            is_transformer = isinstance(model.decoder, TransformerDecoder)
            model.way = output.Thin(way.find_obstacle(model) if is_transformer else None)
        if isinstance(model, Seq2Seq) and decoding.covers(model):
            model.shortcut = decoding.Shortcut()
        if isinstance(model, Seq2Seq):
            model.stepper = cached
    return model


def rest(model: nn.Module) -> None:
    """Gives back the memory that searches keep from one to the next: training wants it."""
    if isinstance(model, Seq2Seq) and model.shortcut is not None:
        model.shortcut.release()


def wanted() -> bool:
    """Whether faster ways may be taken: unless REGARD_FAST is 0."""
    return os.environ.get("REGARD_FAST", "1") != "0"
