"""Faster implementations with the results of the reference modules; `REGARD_FAST=0` switches them off."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from regard.fast.decoding.device import search as device_beam_search
from regard.fast.decoding.kv_cache import make_cached_decoder
from regard.fast.eligibility import fast_paths_enabled
from regard.fast.training import linear_cross_entropy
from regard.fast.training.graphed_loop import run_loop
from regard.fast.training.luong import run_luong_loop
from regard.fast.training.packed import loss as packed_loss
from regard.fast.training.rnn_layer import run_layer
from regard.models.bahdanau2015 import BahdanauDecoder
from regard.models.base import Acceleration, Seq2Seq
from regard.models.luong2015 import LuongDecoder
from regard.models.rnn_common import DecoderUnroller
from regard.models.vaswani2017 import TransformerDecoder
from regard.models.xu2015 import XuDecoder
from regard.models.xu2015_hard import HardAttentionDecoder
from regard.nn import Recurrent

M = TypeVar("M", bound=nn.Module)
# Exact types: a subclass may compute something else in a step.
DECODER_LOOPS: dict[type[nn.Module], DecoderUnroller] = {
    LuongDecoder: run_luong_loop,
    BahdanauDecoder: run_loop,
    XuDecoder: run_loop,
    HardAttentionDecoder: run_loop,
}


def accelerate(model: M) -> M:
    """Give a model its fast paths in place, and return it.

    Recurrent layers and decoder loops get kernels for the device, a Transformer gets the packed loss and a KV cache,
    other models the chunked loss, and searches run on the GPU.
    """
    if not fast_paths_enabled():
        return model
    torch.backends.cudnn.allow_tf32 = False  # the reference implementation computes in fp32, too
    for module in model.modules():
        if isinstance(module, Recurrent):
            module.unroll = run_layer
        elif type(module) in DECODER_LOOPS:
            module.unroll = DECODER_LOOPS[type(module)]  # type: ignore[assignment]
    if isinstance(model, Seq2Seq):
        acceleration = model.acceleration = Acceleration(make_decoder=make_cached_decoder)
        obstacle = packed_loss.find_obstacle(model)
        if obstacle is None:
            acceleration.loss_sum = packed_loss.PackedLoss()
        elif linear_cross_entropy.is_supported(model):
            is_transformer = isinstance(model.decoder, TransformerDecoder)
            acceleration.loss_sum = linear_cross_entropy.ChunkedLoss(
                padding_reason=obstacle if is_transformer else None
            )
        if device_beam_search.is_supported(model):
            acceleration.search = device_beam_search.DeviceBeamSearch()
    return model


def release_decoding_memory(model: nn.Module) -> None:
    """Free the memory that the device search keeps between searches, before training continues."""
    if isinstance(model, Seq2Seq) and model.acceleration.search is not None:
        model.acceleration.search.release()
