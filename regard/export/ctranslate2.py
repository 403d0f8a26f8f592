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
from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES
from torch import Tensor, nn

from regard.errors import UserError, format_suggestion
from regard.models.vaswani2017 import (
    DecoderLayer,
    EncoderLayer,
    PreNorm,
    TransformerDecoder,
    TransformerEmbedding,
    TransformerEncoder,
)
from regard.nn import MultiHeadAttention
from regard.special_tokens import BOS, EOS, SPECIAL_TOKENS, UNK

VMAP = "vmap.txt"  # where CTranslate2 looks for a shortlist of target tokens
POSITIONS = 4096  # tokens that a source or a target may have; CTranslate2 refuses longer ones


def export(
    model: nn.Module, source: Sequence[str], target: Sequence[str], folder: Path, quantization: str | None = None
) -> None:
    """Writes a Transformer into a new folder, with the pieces of its vocabularies in the order of their ids.

    `quantization` is CTranslate2's: `int8`, `int16`, `float16` and so on; None keeps fp32.
    """
    if quantization is not None and quantization not in ACCEPTED_MODEL_TYPES:
        known = format_suggestion(quantization, ACCEPTED_MODEL_TYPES)
        raise UserError(f"CTranslate2 has no quantization {quantization!r}{known}")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: a model is exported into a new folder, and this one holds something")
    spec = described(model)
    for side, pieces, size, register in (
        ("source", source, spec.get_source_vocabulary_size()[0], spec.register_source_vocabulary),
        ("target", target, spec.get_target_vocabulary_size(), spec.register_target_vocabulary),
    ):
        if len(pieces) != size:
            raise UserError(f"the {side} vocabulary has {len(pieces)} pieces, but the model has {size}")
        register(spelt(pieces))
    spec.validate()
    spec.optimize(quantization=quantization)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def spelt(pieces: Sequence[str]) -> list[str]:
    """What the pieces of a vocabulary are called."""
    return distinct([*SPECIAL_TOKENS, *pieces[len(SPECIAL_TOKENS) :]])


def distinct(pieces: Sequence[str]) -> list[str]:
    """The pieces, each of which is spelt as no other: the first of equals keeps its spelling.

    >>> distinct(["a", "b", "a", "a#2"])
    ['a', 'b', 'a#2#', 'a#2']
    """
    spelt, taken, names = set(pieces), set[str](), list[str]()
    for id, piece in enumerate(pieces):
        others = (f"{piece}#{id}{'#' * more}" for more in count())
        names.append(next(name for name in others if name not in spelt) if piece in taken else piece)
        taken.add(piece)
    return names


def described(model: nn.Module) -> Any:
    """The model as CTranslate2 specifies one."""
    encoder, decoder = getattr(model, "encoder", None), getattr(model, "decoder", None)
    if not isinstance(encoder, TransformerEncoder) or not isinstance(decoder, TransformerDecoder):
        halves = " and ".join(type(half).__name__ for half in (encoder, decoder) if half is not None)
        raise UserError(f"CTranslate2 runs Transformers alone, and this is a {halves or type(model).__name__}")
    spec = specs.TransformerSpec(encoding(encoder), decoding(decoder))
    spec.config.layer_norm_epsilon = next(part.eps for part in model.modules() if isinstance(part, nn.LayerNorm))
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = (
        SPECIAL_TOKENS[UNK],
        SPECIAL_TOKENS[BOS],
        SPECIAL_TOKENS[EOS],
    )
    spec.config.decoder_start_token = SPECIAL_TOKENS[BOS]
    return spec


def encoding(encoder: TransformerEncoder) -> Any:
    """The encoder's half."""
    layers: list[EncoderLayer] = list(encoder.layers)  # type: ignore[arg-type]
    pre = isinstance(layers[0].around_attention, PreNorm)
    spec = specs.TransformerEncoderSpec(len(layers), layers[0].attention.heads, pre_norm=pre)
    embed(spec, spec.embeddings[0], encoder.embedding)
    for part, layer in zip(spec.layer, layers, strict=True):
        attend(part.self_attention, layer.attention, layer.around_attention.norm)
        feed(part.ffn, layer)
    if pre:
        normalise(spec.layer_norm, encoder.norm)
    return spec


def decoding(decoder: TransformerDecoder) -> Any:
    """The decoder's half; the attention that it gives out is that of the model's viewpoint."""
    layers, (seen, head, _) = decoder.decoder_layers(), decoder.alignment_head
    pre, heads = isinstance(layers[0].around_attention, PreNorm), layers[0].attention.heads
    spec = specs.TransformerDecoderSpec(
        len(layers),
        heads,
        pre_norm=pre,
        alignment_layer=seen % len(layers),
        alignment_heads=heads if head is None else 1,
    )
    embed(spec, spec.embeddings, decoder.embedding)
    for number, (part, layer) in enumerate(zip(spec.layer, layers, strict=True)):
        attend(part.self_attention, layer.attention, layer.around_attention.norm)
        # CTranslate2 gives out the mean of the first heads; which is the first is for us to say.
        first = head if head is not None and number == seen % len(layers) else 0
        attend(part.attention, layer.cross_attention, layer.around_cross_attention.norm, first)
        feed(part.ffn, layer)
    if pre:
        normalise(spec.layer_norm, decoder.norm)
    spec.projection.weight = array(decoder.output.weight)
    return spec


def embed(spec: Any, words_spec: Any, embedding: TransformerEmbedding) -> None:
    """The embeddings, their scale and the positions."""
    words = embedding.words
    words_spec.weight = array(words.weight)
    spec.scale_embeddings = True  # by √size, as `Embedding` does
    nothing = words.weight.new_zeros(1, POSITIONS, words.embedding_dim)
    spec.position_encodings.encodings = array(embedding.positions(nothing)[0])


def attend(spec: Any, attention: MultiHeadAttention, norm: nn.Module, first: int = 0) -> None:
    """A layer of attention, one of its heads before the others; they are added up, so the order is free."""
    rows = torch.arange(attention.size).view(attention.heads, -1).roll(-first, 0).flatten()
    weight = attention.in_proj_weight.detach().cpu().view(3, attention.size, -1)[:, rows]
    bias = attention.in_proj_bias.detach().cpu().view(3, -1)[:, rows]
    *inner, outer = spec.linear
    # Self-attention projects all three at once, attention over a source the queries apart from keys and values.
    for part, taken in zip(inner, (slice(0, 3),) if len(inner) == 1 else (slice(0, 1), slice(1, 3)), strict=True):
        part.weight, part.bias = array(weight[taken].flatten(0, 1)), array(bias[taken].flatten())
    outer.weight = array(attention.out_proj.weight.detach().cpu()[:, rows])
    outer.bias = array(attention.out_proj.bias)
    normalise(spec.layer_norm, norm)


def feed(spec: Any, layer: EncoderLayer | DecoderLayer) -> None:
    """A feed-forward network."""
    first, _, second = layer.feedforward
    for part, linear in ((spec.linear_0, first), (spec.linear_1, second)):
        part.weight, part.bias = array(linear.weight), array(linear.bias)
    normalise(spec.layer_norm, layer.around_feedforward.norm)


def normalise(spec: Any, norm: nn.Module) -> None:
    """A layer norm."""
    spec.gamma, spec.beta = array(norm.weight), array(norm.bias)


def array(values: Any) -> npt.NDArray[np.float32]:
    """Weights as a copy of their own: CTranslate2 quantizes in place."""
    weights: Tensor = values
    return np.array(weights.detach().float().cpu().numpy())
