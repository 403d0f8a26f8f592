"""From a recipe to a model."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.config import parse
from regard.errors import UserError, nearest
from regard.models import (
    bahdanau,
    caption,
    cho,
    cui,
    hard,
    lin,
    luong,
    mino,
    regression,
    schuster,
    sutskever,
    transformer,
    xu,
    yang,
)
from regard.models.criterion import CrossEntropy, LossSettings
from regard.models.model import Model
from regard.recipes.recipe import override, read
from regard.recipes.sizes import sized

Builder = Callable[[Any, int, int, CrossEntropy], Model]
MORE = "REGARD_IMPORT"  # names modules that add kinds of their own

KINDS: dict[str, tuple[type, Builder]] = {
    "bahdanau": (bahdanau.BahdanauSettings, bahdanau.build),
    "caption-hard": (caption.HardCaptionSettings, caption.hard),
    "caption-soft": (caption.SoftCaptionSettings, caption.soft),
    "cho": (cho.ChoSettings, cho.build),
    "cui": (cui.CuiSettings, cui.build),
    "lin": (lin.LinSettings, lin.build),
    "luong": (luong.LuongSettings, luong.build),
    "mino": (mino.MinoSettings, mino.build),
    "schuster": (schuster.SchusterSettings, schuster.build),
    "schuster-regression": (schuster.NetworkSettings, regression.build),
    "sutskever": (sutskever.SutskeverSettings, sutskever.build),
    "transformer": (transformer.TransformerSettings, transformer.build),
    "xu-hard": (hard.HardSettings, hard.build),
    "xu-soft": (xu.XuSettings, xu.build),
    "yang": (yang.YangSettings, yang.build),
}


def build(config: str | Mapping[str, Any], source_size: int, target_size: int, **overrides: Any) -> Any:
    """A model by its recipe's name, or by a recipe as a mapping, for vocabularies of the given sizes.

    A `Seq2Seq`, where the recipe's task is to write; whatever the task, a `Model`.
    Overrides are keys of the recipe's `model` section: `build("luong2015-global", 8000, 8000, size=256, score="dot")`.
    """
    recipe = complete(read(config) if isinstance(config, str) else config)
    recipe = sized(override(recipe, {f"model.{key}": value for key, value in overrides.items()}))
    model = dict(recipe["model"])
    kind = model.pop("kind")
    if model.get("tie") == "all" and not recipe.get("text", {}).get("shared", True):
        model["tie"] = "decoder"  # two vocabularies cannot share one matrix, even where they are of one size
    settings_class, builder = kinds()[kind]
    settings: Any = parse(settings_class, model, "model")
    criterion = CrossEntropy(parse(LossSettings, recipe.get("loss", {}), "loss"))
    try:
        return padded(builder(settings, source_size, target_size, criterion))
    except ValueError as error:
        raise UserError(f"model: {error}") from error


def complete(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe whose `model` section has every key that its kind of model has."""
    model = recipe.get("model", {})
    kind = model.get("kind")
    if not isinstance(kind, str) or kind not in kinds():
        raise UserError(
            f"there is no model.kind {kind!r}{nearest(str(kind), KINDS)} (one of your own: {MORE} names its module)"
        )
    defaults = {field.name: field.default for field in dataclasses.fields(KINDS[kind][0])}
    return {**recipe, "model": {**defaults, **model}}


def kinds() -> dict[str, tuple[type, Builder]]:
    """All kinds of models, with those that modules named in REGARD_IMPORT, by commas, have added to `KINDS`.

    A variable reaches every process that a command starts. That a run should name what is imported would not do: a run
    may be a stranger's.
    """
    for name in filter(None, os.environ.get(MORE, "").split(",")):
        if name not in sys.modules and str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        try:
            import_module(name)
        except ImportError as error:
            raise UserError(f"{MORE} names {name!r}, which cannot be imported: {error}") from error
    return KINDS


def padded(model: Model) -> Model:
    """The model with zeros for PAD in its embeddings to begin with, whatever they were initialised with."""
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            with torch.no_grad():
                module.weight[module.padding_idx].zero_()
    return model
