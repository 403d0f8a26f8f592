"""Which models can be decoded in bytes: Transformers as they are written here, where the processor has kernels."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import nn

from regard.fast import cached
from regard.fast.compiled import MissingError, approved
from regard.fast.hearing import heard
from regard.fast.octets.library import library
from regard.fast.octets.model import OctetModel
from regard.fast.octets.product import tried
from regard.fast.packed.way import EMBEDDING_PARTS, KNOWN
from regard.models import Seq2Seq
from regard.models.vaswani2017 import PostNorm, PreNorm, TransformerDecoder, TransformerEncoder


def in_bytes(model: Seq2Seq) -> OctetModel:
    """The model in bytes, where nothing is lacking."""
    return OctetModel(model, kernels())


def lacking(model: Seq2Seq) -> str | None:
    """Why a model cannot be decoded in bytes, if it cannot."""
    if not covers(model):
        return "kernels know the Transformers of the recipes alone, in fp32 and unchanged"
    if not all(weight.isfinite().all() for weight in model.parameters()):
        return "it has weights that are not numbers"
    try:
        kernels()
    except MissingError as error:
        return str(error)
    return None


@cache
def kernels() -> ctypes.CDLL:
    """Those for this processor, if products are right and take less time than in single precision."""
    found = library()
    approved(found, lambda: tried(found))
    return found


def covers(model: Seq2Seq) -> bool:
    """Whether this is a Transformer that the kernels know, not one that somebody made of it."""
    encoder, decoder = model.encoder, model.decoder
    if type(model) is not Seq2Seq or type(encoder) is not TransformerEncoder:
        return False
    if not isinstance(decoder, TransformerDecoder) or not cached.covers(decoder):
        return False
    inside = [*encoder.layers.modules(), *decoder.layers.modules(), encoder.norm, decoder.norm, decoder.output]
    around = [*encoder.embedding.modules(), *decoder.embedding.modules()]
    kinds = {type(part) for part in inside}
    known = kinds <= KNOWN and not {PreNorm, PostNorm} <= kinds and {type(part) for part in around} <= EMBEDDING_PARTS
    here = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in model.parameters())
    return known and here and regular(encoder, decoder) and not heard(encoder, decoder, *inside, *around)


def regular(encoder: TransformerEncoder, decoder: TransformerDecoder) -> bool:
    """Whether layers are as they are written: all of a size, each norm with weights, each network with its ReLU."""
    layers = [*encoder.layers, *decoder.layers]
    sizes = {(layer.attention.size, layer.attention.heads) for layer in layers}
    networks = {tuple(type(part) for part in layer.feedforward) for layer in layers}
    last = {type(encoder.norm), type(decoder.norm)} <= {nn.LayerNorm, nn.Identity}
    norms = [part for half in (encoder, decoder) for part in half.modules() if isinstance(part, nn.LayerNorm)]
    weighted = all(part.weight is not None and part.bias is not None for part in norms)
    return last and weighted and len(sizes) == 1 and networks == {(nn.Linear, nn.ReLU, nn.Linear)}
