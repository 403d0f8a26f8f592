"""Choice of the fast paths of a model."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import torch
from torch import nn

from regard.fast.decoding.device import search as decoding
from regard.fast.decoding.kv_cache import cached
from regard.fast.eligibility import wanted
from regard.fast.training import linear_cross_entropy as output
from regard.fast.training.graphed_loop import recorded
from regard.fast.training.luong import looped
from regard.fast.training.packed import loss as way
from regard.fast.training.rnn_layer import unrolled
from regard.models.bahdanau2015 import BahdanauDecoder
from regard.models.base import Seq2Seq
from regard.models.luong2015 import LuongDecoder
from regard.models.rnn_common import DecoderUnroller, unroll_decoder
from regard.models.vaswani2017 import TransformerDecoder
from regard.models.xu2015 import XuDecoder
from regard.models.xu2015_hard import HardAttentionDecoder
from regard.nn import Recurrent

M = TypeVar("M", bound=nn.Module)
# Of these decoders themselves: what is derived from one may do something else in a step.
LOOPS: dict[type[nn.Module], DecoderUnroller] = {
    LuongDecoder: looped,
    BahdanauDecoder: partial(recorded, unroll_decoder),
    XuDecoder: partial(recorded, unroll_decoder),
    HardAttentionDecoder: partial(recorded, unroll_decoder),
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
            model.loss_fn = way.Packed()
        elif isinstance(model, Seq2Seq) and output.covers(model):
            is_transformer = isinstance(model.decoder, TransformerDecoder)
            model.loss_fn = output.Thin(way.find_obstacle(model) if is_transformer else None)
        if isinstance(model, Seq2Seq) and decoding.covers(model):
            model.device_search = decoding.Shortcut()
        if isinstance(model, Seq2Seq):
            model.make_fast_decoder = cached
    return model


def rest(model: nn.Module) -> None:
    """Gives back the memory that searches keep from one to the next: training wants it."""
    if isinstance(model, Seq2Seq) and model.device_search is not None:
        model.device_search.release()
