"""Weights and configuration of MarianMT and Pegasus models of Hugging Face, converted to and from a Transformer's.

Marian is post-norm; Pegasus is the same with pre-norm. In both, the first half of a position's vector are sines and the
second half cosines; in a Transformer of this package they alternate. The order of the hidden units is arbitrary as
long as all weights share it, so the conversion reorders them, and the results are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models.vaswani2017 import ACTIVATIONS, TransformerSettings
from regard.nn.positional_encoding import sinusoidal_table
from regard.special_tokens import BOS, EOS, PAD

ARCHITECTURES = {"marian": "MarianMTModel", "pegasus": "PegasusForConditionalGeneration"}
MODEL_TYPES = {"post": "marian", "pre": "pegasus"}  # by the position of the norm
# The logit of a copy of another token as BOS. The model never produces it, so its probability is to be 0; -inf would
# make label smoothing infinite.
EXCLUDED_LOGIT = -100.0
_POSITION_TOLERANCE = 1e-2  # a table of positions may have been stored in half precision
_ENCODER_WORDS, _DECODER_WORDS = "encoder.embedding.words.weight", "decoder.embedding.words.weight"
_OUTPUT, _OUTPUT_BIAS = "decoder.output.weight", "decoder.output.bias"
_BIAS = "final_logits_bias"
# Hugging Face's names of modules, in the order in which they are replaced.
_MODULE_NAMES = {
    "around_cross_attention.norm": "encoder_attn_layer_norm",
    "around_attention.norm": "self_attn_layer_norm",
    "around_feedforward.norm": "final_layer_norm",
    "cross_attention.": "encoder_attn.",
    ".attention.": ".self_attn.",
    "feedforward.0": "fc1",
    "feedforward.2": "fc2",
    "coder.norm.": "coder.layer_norm.",
    "embedding.words": "embed_tokens",
}
# Options of configurations that MarianMT models of transformers ignore: other values belong to another architecture.
_IGNORED_OPTIONS = {
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}


class SpecialIds(NamedTuple):
    """Ids of the special tokens in the vocabulary of a folder."""

    pad: int
    unk: int
    start: int  # that the decoder begins with
    eos: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any], unk: int) -> SpecialIds:
        """Return those of a configuration, which names all but <unk>."""
        ids = []
        for name in ("pad_token_id", "decoder_start_token_id", "eos_token_id"):
            value = config.get(name)
            if type(value) is not int:
                raise UserError(f"config.json: {name} is {value!r}, not one id")
            ids.append(value)
        pad, start, eos = ids
        if len({pad, unk, eos}) < 3:
            raise UserError(
                f"config.json: pad_token_id {pad}, eos_token_id {eos} and the id {unk} of <unk> must differ"
            )
        return cls(pad, unk, start, eos)

    @property
    def has_own_start(self) -> bool:
        """Return whether the token that the decoder begins with is none of the others."""
        return self.start not in (self.pad, self.unk, self.eos)

    def order_ids(self, size: int) -> list[int]:
        """Return the ids of a vocabulary in the order of a run: PAD, UNK, BOS and EOS, then the others.

        BOS is the token that the decoder begins with; where that is one of the others, it is a copy of it.
        """
        first = self.pad, self.unk, self.start, self.eos
        return [*first, *(id for id in range(size) if id not in first)]


def make_model_section(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `model` section of a recipe for a configuration; raise UserError if a Transformer cannot be it."""
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise UserError(f"config.json: model_type is {kind!r}, not {' or '.join(ARCHITECTURES)}")
    for name, value in _IGNORED_OPTIONS.items():
        if config.get(name, value) != value and kind == "marian":
            raise UserError(f"config.json: {name} is {config[name]}, and only {value} is supported")
    activations = {"silu": "swish"} | {name: name for name in ACTIVATIONS}
    activation = config.get("activation_function", "gelu")
    if activation not in activations:
        raise UserError(f"config.json: activation_function is {activation!r}, not {', '.join(activations)}")
    section: dict[str, Any] = {
        "size": config.get("d_model"),
        "layers": config.get("encoder_layers"),
        "decoder_layers": config.get("decoder_layers"),
    }
    for own, theirs in (("heads", "attention_heads"), ("feedforward", "ffn_dim")):
        section[own], decoder = (config.get(f"{side}_{theirs}") for side in ("encoder", "decoder"))
        if section[own] != decoder:
            raise UserError(
                f"config.json: encoder_{theirs} {section[own]} and decoder_{theirs} {decoder} must be equal"
            )
    for own, value in section.items():
        if type(value) is not int or value < 1:
            raise UserError(f"config.json: the number of {own} is missing or is not at least 1")
    is_shared = kind == "pegasus" or config.get("share_encoder_decoder_embeddings", True)
    is_tied = config.get("tie_word_embeddings", True)
    return section | {
        "activation": activations[activation],
        "dropout": config.get("dropout", 0.1),
        "norm": next(norm for norm, name in MODEL_TYPES.items() if name == kind),
        "tie": ("all" if is_shared else "decoder") if is_tied else "none",
        "scale_embedding": bool(config.get("scale_embedding", False)),
        "max_positions": config.get("max_position_embeddings", 1024),
        "output_bias": True,  # until the weights show that there is none
    }


def import_weights(tensors: Mapping[str, Tensor], model: nn.Module, special: SpecialIds) -> dict[str, Tensor]:
    """Return the weights of a model, which may be on the meta device; the bias of the output is left out if it is 0.

    Raise UserError if a weight is missing, or has another shape.
    """
    expected, imported = model.state_dict(keep_vars=True), dict[str, Tensor]()
    order = _order_sines_first(expected[_ENCODER_WORDS].shape[1]).argsort()
    first_names: dict[int, str] = {}  # of weights that are tied
    num_added = 0 if special.has_own_start else 1
    for name, weight in expected.items():
        if first_names.setdefault(id(weight), name) != name:
            continue
        if name == _OUTPUT_BIAS:
            size = len(weight) - num_added
            bias = _take(tensors, _BIAS, (1, size)) if _BIAS in tensors else torch.zeros(1, size)
            imported[name] = bias[0, special.order_ids(size)]
            if not special.has_own_start:
                imported[name][BOS] = EXCLUDED_LOGIT
            continue
        parts, shape = _find_parts(name), list(weight.shape)
        if name in (_ENCODER_WORDS, _DECODER_WORDS, _OUTPUT):
            shape[0] -= num_added
            parts = [part if part in tensors else "model.shared.weight" for part in parts]
        shape[0] //= len(parts)
        whole = torch.cat([_take(tensors, part, tuple(shape)) for part in parts])
        if name in (_ENCODER_WORDS, _DECODER_WORDS, _OUTPUT):
            whole = whole[special.order_ids(len(whole))]
        imported[name] = _reorder(whole, name, order)
    for side in ("encoder", "decoder"):
        table = tensors.get(f"model.{side}.embed_positions.weight")
        if table is not None and not _is_sinusoidal(table):
            raise UserError(f"the positions of the {side} are not sinusoidal")
    if not imported[_OUTPUT_BIAS].any():
        del imported[_OUTPUT_BIAS]
    return imported


def _take(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    if name not in tensors:
        raise UserError(f"the weights have no {name}")
    tensor = tensors[name]
    if tuple(tensor.shape) != shape:
        found, wanted = ("×".join(map(str, each)) for each in (tensor.shape, shape))
        raise UserError(f"{name} is {found}, but config.json and the vocabulary require {wanted}")
    return tensor.float()


def _find_parts(name: str) -> list[str]:
    """Return the names of the weights of Hugging Face that a weight consists of."""
    if name == _OUTPUT:
        return ["lm_head.weight"]
    for own, theirs in _MODULE_NAMES.items():
        name = name.replace(own, theirs)
    return [f"model.{name.replace('in_proj_', f'{part}_proj.')}" for part in ("qkv" if "in_proj_" in name else "q")]


def _reorder(weight: Tensor, name: str, order: Tensor) -> Tensor:
    """Reorder the hidden units of the model that a weight reads or writes."""
    if name.endswith(("in_proj_bias", "feedforward.0.bias")):
        return weight.contiguous()
    reads = name.endswith(("in_proj_weight", "feedforward.0.weight")) or name in (
        *(_ENCODER_WORDS, _DECODER_WORDS, _OUTPUT),
    )
    return weight.index_select(1 if reads else 0, order)


def _order_sines_first(size: int) -> Tensor:
    """Return the order of the hidden units with the sines of a position before the cosines."""
    return torch.cat((torch.arange(0, size, 2), torch.arange(1, size, 2)))


def _is_sinusoidal(table: Tensor) -> bool:
    """Return whether a table of positions is that of `SinusoidalPositions`, with sines first."""
    count, size = table.shape
    expected = sinusoidal_table(0, count, size, table.device)[:, _order_sines_first(size)]
    return torch.allclose(table.float(), expected, atol=_POSITION_TOLERANCE)


def find_export_obstacle(settings: TransformerSettings, model: nn.Module) -> str | None:
    """Return why a Transformer cannot be a model of these architectures, or None."""
    if settings.positions != "sinusoidal":
        return f"model.positions is {settings.positions}, and only sinusoidal ones are supported"
    if settings.norm == "pre" and (settings.tie != "all" or not _shares_embeddings(model)):
        return "pre-norm needs one matrix for source, target and output (model.tie=all, text.shared=true)"
    return None


def _shares_embeddings(model: nn.Module) -> bool:
    state = model.state_dict(keep_vars=True)
    return state[_ENCODER_WORDS] is state[_DECODER_WORDS]


def export_config(settings: TransformerSettings, model: nn.Module) -> dict[str, Any]:
    """Return the configuration of a model for which `find_export_obstacle` finds nothing."""
    kind, state = MODEL_TYPES[settings.norm], model.state_dict()
    sizes = {"attention_heads": settings.heads, "ffn_dim": settings.feedforward_size}
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "is_encoder_decoder": True,
        "vocab_size": len(state[_ENCODER_WORDS]),
        "decoder_vocab_size": len(state[_DECODER_WORDS]),
        "d_model": settings.size,
        "encoder_layers": settings.layers,
        "decoder_layers": settings.num_decoder_layers,
        **{f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()},
        "activation_function": settings.activation,
        "dropout": settings.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "scale_embedding": settings.scale_embedding,
        "max_position_embeddings": settings.max_positions,
        "share_encoder_decoder_embeddings": _shares_embeddings(model),
        "tie_word_embeddings": settings.tie != "none",
        "torch_dtype": "float32",
        **_SPECIAL_IDS,
    }


# For the configuration of the model, and for that of `generate`.
_SPECIAL_IDS = {
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": None,
    "decoder_start_token_id": BOS,
    "forced_eos_token_id": None,
}


def export_generation_config(beam: int, max_length: int) -> dict[str, Any]:
    """Return the options with which `generate` searches as `regard translate --length-penalty 0` does."""
    search = {"num_beams": beam, "length_penalty": 0.0, "early_stopping": "never", "max_length": max_length}
    return {**search, "bad_words_ids": [[PAD], [BOS]], **_SPECIAL_IDS}


def export_weights(settings: TransformerSettings, model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a model under the names of Hugging Face; tied ones occur once."""
    exported, seen = dict[str, Tensor](), set[int]()
    state = model.state_dict(keep_vars=True)
    order = _order_sines_first(settings.size)
    for name, weight in state.items():
        if id(weight) in seen or name == _OUTPUT_BIAS:
            continue
        seen.add(id(weight))
        parts = ["model.shared.weight"] if name == _ENCODER_WORDS and _shares_embeddings(model) else _find_parts(name)
        whole = _reorder(weight.detach().float().cpu(), name, order)
        exported |= {part: chunk.contiguous() for part, chunk in zip(parts, whole.chunk(len(parts)), strict=True)}
    bias = state.get(_OUTPUT_BIAS)
    exported[_BIAS] = torch.zeros(len(state[_OUTPUT])) if bias is None else bias.detach().float().cpu()
    exported[_BIAS] = exported[_BIAS][None].contiguous()
    if settings.norm == "pre":  # transformers warns if a Pegasus has no table of positions
        table = sinusoidal_table(0, settings.max_positions, settings.size, torch.device("cpu"))[:, order]
        exported |= {f"model.{side}.embed_positions.weight": table.clone() for side in ("encoder", "decoder")}
    return exported
