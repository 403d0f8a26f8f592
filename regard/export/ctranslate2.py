"""Export of a Transformer to CTranslate2: the same weights, and so the same probabilities.

CTranslate2 identifies tokens by their text, so every id gets a unique name. Its sinusoidal positions are not those of
the paper (they count from 1, sine and cosine are two halves, frequencies end at 1/10000), so the table of positions
is written out, whatever kind the model has.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from ctranslate2 import specs
from ctranslate2.specs import common_spec
from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES
from torch import Tensor, nn

from regard.errors import UserError, format_suggestion
from regard.models.vaswani2017 import (
    DecoderLayer,
    EncoderLayer,
    TransformerDecoder,
    TransformerEmbedding,
    TransformerEncoder,
)
from regard.nn import MultiHeadAttention
from regard.special_tokens import BOS, EOS, SPECIAL_TOKENS, UNK

VMAP = "vmap.txt"  # file of a shortlist of target tokens
MAX_POSITIONS = 4096  # CTranslate2 refuses longer sentences


def export(
    model: nn.Module, source: Sequence[str], target: Sequence[str], folder: Path, quantization: str | None = None
) -> None:
    """Write a Transformer to a new folder, with the tokens of its vocabularies in the order of their ids.

    `quantization` is CTranslate2's (`int8`, `int16`, `float16`, …); None keeps fp32.
    """
    if quantization is not None and quantization not in ACCEPTED_MODEL_TYPES:
        known = format_suggestion(quantization, ACCEPTED_MODEL_TYPES)
        raise UserError(f"CTranslate2 has no quantization {quantization!r}{known}")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: the folder is not empty; export to a new folder")
    spec = _to_spec(model)
    for side, pieces, size, register in (
        ("source", source, spec.get_source_vocabulary_size()[0], spec.register_source_vocabulary),
        ("target", target, spec.get_target_vocabulary_size(), spec.register_target_vocabulary),
    ):
        if len(pieces) != size:
            raise UserError(f"the {side} vocabulary has {len(pieces)} pieces, but the model has {size}")
        register(token_names(pieces))
    spec.validate()
    spec.optimize(quantization=quantization)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def token_names(pieces: Sequence[str]) -> list[str]:
    """Return the unique token names of a vocabulary."""
    return make_unique([*SPECIAL_TOKENS, *pieces[len(SPECIAL_TOKENS) :]])


def make_unique(pieces: Sequence[str]) -> list[str]:
    """Return the tokens with suffixes for repeated ones; the first of equals keeps its name.

    >>> make_unique(["a", "b", "a", "a#2"])
    ['a', 'b', 'a#2#', 'a#2']
    """
    spelt, taken, names = set(pieces), set[str](), list[str]()
    for id, piece in enumerate(pieces):
        others = (f"{piece}#{id}{'#' * more}" for more in count())
        names.append(next(name for name in others if name not in spelt) if piece in taken else piece)
        taken.add(piece)
    return names


def _to_spec(model: nn.Module) -> Any:
    """Return the CTranslate2 specification of a model."""
    encoder, decoder = getattr(model, "encoder", None), getattr(model, "decoder", None)
    if not isinstance(encoder, TransformerEncoder) or not isinstance(decoder, TransformerDecoder):
        parts = " and ".join(type(part).__name__ for part in (encoder, decoder) if part is not None)
        raise UserError(f"CTranslate2 supports Transformers only, and this is a {parts or type(model).__name__}")
    spec = specs.TransformerSpec(_encoder_spec(encoder), _decoder_spec(decoder))
    spec.config.layer_norm_epsilon = next(part.eps for part in model.modules() if isinstance(part, nn.LayerNorm))
    spec.config.unk_token, spec.config.eos_token = SPECIAL_TOKENS[UNK], SPECIAL_TOKENS[EOS]
    spec.config.bos_token = spec.config.decoder_start_token = SPECIAL_TOKENS[BOS]
    return spec


def _encoder_spec(encoder: TransformerEncoder) -> Any:
    spec = _stack_spec(specs.TransformerEncoderSpec, encoder)
    _set_embedding(spec, spec.embeddings[0], encoder.embedding)
    return spec


def _decoder_spec(decoder: TransformerDecoder) -> Any:
    """Return the specification of a decoder, whose reported attention is that of the alignment head."""
    layers, (seen, head, _) = decoder.decoder_layers(), decoder.alignment_head
    aligned, num_heads = seen % len(layers), layers[0].attention.heads if head is None else 1
    spec = _stack_spec(specs.TransformerDecoderSpec, decoder, alignment_layer=aligned, alignment_heads=num_heads)
    _set_embedding(spec, spec.embeddings, decoder.embedding)
    for number, (part, layer) in enumerate(zip(spec.layer, layers, strict=True)):
        # CTranslate2 returns the mean of the first heads, so the alignment head becomes the first.
        first = head if head is not None and number == aligned else 0
        _set_attention(part.attention, layer.cross_attention, layer.around_cross_attention.norm, first)
    spec.projection.weight = _to_float32(decoder.output.weight)
    if decoder.output.bias is not None:
        spec.projection.bias = _to_float32(decoder.output.bias)
    return spec


def _stack_spec(kind: Any, stack: TransformerEncoder | TransformerDecoder, **options: int) -> Any:
    """Return the specification of an encoder or decoder, with all layers but without embedding and cross-attention."""
    layers: list[Any] = list(stack.layers)
    first, pre = layers[0], layers[0].around_attention.is_pre_norm
    spec = kind(len(layers), first.attention.heads, pre_norm=pre, activation=_find_activation(first), **options)
    for part, layer in zip(spec.layer, layers, strict=True):
        _set_attention(part.self_attention, layer.attention, layer.around_attention.norm)
        _set_feedforward(part.ffn, layer)
    if pre:
        _set_norm(spec.layer_norm, stack.norm)
    return spec


ACTIVATIONS = {
    nn.ReLU: common_spec.Activation.RELU,
    nn.SiLU: common_spec.Activation.SWISH,
    nn.GELU: common_spec.Activation.GELU,
}


def _find_activation(layer: EncoderLayer | DecoderLayer) -> Any:
    """Return the activation of the feed-forward network."""
    kind = type(layer.feedforward[1])
    if kind not in ACTIVATIONS:
        raise UserError(f"CTranslate2 does not support the activation {kind.__name__}")
    return ACTIVATIONS[kind]


def _set_embedding(spec: Any, words_spec: Any, embedding: TransformerEmbedding) -> None:
    words = embedding.words
    words_spec.weight = _to_float32(words.weight)
    spec.scale_embeddings = embedding.scale != 1  # by √size
    nothing = words.weight.new_zeros(1, MAX_POSITIONS, words.embedding_dim)
    spec.position_encodings.encodings = _to_float32(embedding.positions(nothing)[0])


def _set_attention(spec: Any, attention: MultiHeadAttention, norm: nn.Module, first: int = 0) -> None:
    """Set the weights of attention, with head `first` before the others; their order does not affect the sum."""
    rows = torch.arange(attention.size).view(attention.heads, -1).roll(-first, 0).flatten()
    weight = attention.in_proj_weight.detach().cpu().view(3, attention.size, -1)[:, rows]
    bias = attention.in_proj_bias.detach().cpu().view(3, -1)[:, rows]
    *inner, outer = spec.linear
    # Self-attention has one projection, cross-attention one for queries and one for keys and values.
    for part, taken in zip(inner, (slice(0, 3),) if len(inner) == 1 else (slice(0, 1), slice(1, 3)), strict=True):
        part.weight, part.bias = _to_float32(weight[taken].flatten(0, 1)), _to_float32(bias[taken].flatten())
    outer.weight = _to_float32(attention.out_proj.weight.detach().cpu()[:, rows])
    outer.bias = _to_float32(attention.out_proj.bias)
    _set_norm(spec.layer_norm, norm)


def _set_feedforward(spec: Any, layer: EncoderLayer | DecoderLayer) -> None:
    first, _, second = layer.feedforward
    for part, linear in ((spec.linear_0, first), (spec.linear_1, second)):
        part.weight, part.bias = _to_float32(linear.weight), _to_float32(linear.bias)
    _set_norm(spec.layer_norm, layer.around_feedforward.norm)


def _set_norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma, spec.beta = _to_float32(norm.weight), _to_float32(norm.bias)


def _to_float32(values: Any) -> npt.NDArray[np.float32]:
    """Return a copy of weights: CTranslate2 quantizes in place."""
    weights: Tensor = values
    return np.array(weights.detach().float().cpu().numpy())
