"""Random Transformers, with some words favoured, and their CTranslate2 exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.export.ctranslate2 import export
from regard.models import build
from regard.special_tokens import BOS, EOS, PAD
from regard.translate.backends.ctranslate2 import CTranslate2Model

EXPORTED_MODELS: dict[str, dict[str, Any]] = {
    "post-norm-tied": {"norm": "post", "tie": "all", "size": 12, "heads": 3},
    "pre-norm-tied": {"norm": "pre", "tie": "all", "size": 16, "heads": 1},
    "pre-norm-odd": {"norm": "pre", "tie": "decoder", "size": 15, "heads": 5},
    "post-norm-untied-odd": {"norm": "post", "tie": "none", "size": 21, "heads": 3},
    "first-layer": {"norm": "pre", "tie": "none", "size": 12, "heads": 2, "align_layer": 1},
    "one-head": {"norm": "post", "tie": "decoder", "size": 12, "heads": 3, "align_layer": 1, "align_head": 2},
    "last-head": {"norm": "pre", "tie": "all", "size": 12, "heads": 4, "align_head": 4},
    "learned-positions": {
        "norm": "pre", "tie": "none", "size": 12, "heads": 2, "positions": "learned", "max_positions": 5
    },
    "no-positions": {"norm": "post", "tie": "decoder", "size": 12, "heads": 2, "positions": "none"},
    "swish": {
        **{"norm": "post", "tie": "all", "size": 12, "heads": 2, "activation": "swish"},
        **{"scale_embedding": False, "decoder_layers": 1, "output_bias": True},
    },
    "gelu": {"norm": "post", "tie": "none", "size": 12, "heads": 2, "activation": "gelu"},
}  # fmt: skip
ENDING = {PAD: -50.0, BOS: -50.0, EOS: 1.5}  # logit offsets with which targets end soon
ENDLESS = {PAD: -50.0, BOS: -50.0, EOS: -50.0}  # … or never


def make_biased_transformer(name: str, offsets: dict[int, float], scale: float = 1.0, seed: int = 3) -> Any:
    """Return a random model of `EXPORTED_MODELS` that scales its logits and adds offsets to those of some ids."""
    torch.manual_seed(seed)
    options = EXPORTED_MODELS[name]
    sizes = (23, 23) if options["tie"] == "all" else (19, 23)
    model = build("vaswani2017-base", *sizes, layers=2, feedforward=20, dropout=0.0, **options)
    for module in model.modules():
        for weights in module.parameters(recurse=False):
            nn.init.normal_(weights, 1.0 if isinstance(module, nn.LayerNorm) and weights is module.weight else 0.0, 0.3)
    decoder = model.decoder
    last = decoder.norm if options["norm"] == "pre" else decoder.layers[-1].around_feedforward.norm
    with torch.no_grad():  # the first input of the output layer is always 10
        last.weight[0], last.bias[0] = 0.0, 10.0
        decoder.output.weight *= scale
        decoder.output.weight[:, 0] = 0.0
        for id, offset in offsets.items():
            decoder.output.weight[id, 0] = offset / 10
    return model.eval()


def make_vocabularies(model: Any) -> tuple[list[str], list[str]]:
    """Return a spelling for each source and each target id."""
    sizes = (model.encoder.embedding.words.num_embeddings, model.decoder.embedding.words.num_embeddings)
    source, target = ([f"{size}-{id}" for id in range(size)] for size in sizes)
    return source, target


def export_and_load(model: Any, folder: Path, quantization: str | None = None) -> CTranslate2Model:
    """Export a model to CTranslate2 and open it."""
    export(model, *make_vocabularies(model), folder, quantization)
    return CTranslate2Model(folder)
