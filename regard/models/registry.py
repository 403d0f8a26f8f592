"""Registry of models: builds a model from a recipe's `model.kind`, plug-ins included."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from regard.config import parse_settings
from regard.errors import UserError, format_suggestion
from regard.models import (
    bahdanau2015,
    cho2014,
    cui2017,
    lin2017,
    luong2015,
    mino2017,
    schuster1997,
    sutskever2014,
    vaswani2017,
    wide_deep,
    xu2015,
    xu2015_caption,
    xu2015_hard,
    yang2016,
)
from regard.models.base import CrossEntropy, Model
from regard.models.plugins import PLUGIN_VARIABLE, import_plugins
from regard.recipes.recipe import override, read_recipe, resolve_auto_sizes

ModelBuilder = Callable[[Any, int, int, CrossEntropy], Model]

MODELS: dict[str, tuple[type, ModelBuilder]] = {
    "bahdanau": (bahdanau2015.BahdanauSettings, bahdanau2015.build),
    "caption-hard": (xu2015_caption.HardCaptionSettings, xu2015_caption.build_hard_caption),
    "caption-soft": (xu2015_caption.SoftCaptionSettings, xu2015_caption.build_soft_caption),
    "cho": (cho2014.ChoSettings, cho2014.build),
    "cui": (cui2017.CuiSettings, cui2017.ClozeReader),
    "lin": (lin2017.LinSettings, lin2017.LinClassifier),
    "luong": (luong2015.LuongSettings, luong2015.build),
    "mino": (mino2017.MinoSettings, mino2017.build),
    "schuster": (schuster1997.SchusterSettings, schuster1997.build_tagger),
    "schuster-regression": (schuster1997.SequenceNetworkSettings, schuster1997.Regressor),
    "sutskever": (sutskever2014.SutskeverSettings, sutskever2014.build),
    "transformer": (vaswani2017.TransformerSettings, vaswani2017.build),
    "wide-deep": (wide_deep.WideDeepSettings, wide_deep.WideDeepClassifier),
    "xu-hard": (xu2015_hard.HardAttentionSettings, xu2015_hard.build),
    "xu-soft": (xu2015.XuSettings, xu2015.build),
    "yang": (yang2016.YangSettings, yang2016.YangClassifier),
}


def build(config: str | Mapping[str, Any], source_size: int, target_size: int, **overrides: Any) -> Any:
    """Build a model by its recipe's name, or from a recipe as a mapping, for vocabularies of the given sizes.

    Return a `Seq2Seq` if the recipe's task generates text, else another `Model`. Overrides are keys of the recipe's
    `model` section: `build("luong2015-global", 8000, 8000, size=256, score="dot")`.
    """
    recipe = _fill_model_defaults(read_recipe(config) if isinstance(config, str) else config)
    recipe = resolve_auto_sizes(override(recipe, {f"model.{key}": value for key, value in overrides.items()}))
    model = dict(recipe["model"])
    kind = model.pop("kind")
    if model.get("tie") == "all" and not recipe.get("text", {}).get("shared", True):
        model["tie"] = "decoder"  # two vocabularies cannot share one matrix, even if they have the same size
    settings_class, builder = MODELS[kind]
    settings: Any = parse_settings(settings_class, model, "model")
    criterion = parse_settings(CrossEntropy, recipe.get("loss", {}), "loss")
    try:
        return _zero_padding_embeddings_(builder(settings, source_size, target_size, criterion))
    except ValueError as error:
        raise UserError(f"model: {error}") from error


def _fill_model_defaults(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe with every key that its kind of model has in the `model` section."""
    model = recipe.get("model", {})
    kind = model.get("kind")
    if PLUGIN_VARIABLE in os.environ:
        import_plugins()
    if not isinstance(kind, str) or kind not in MODELS:
        raise UserError(
            f"unknown model.kind {kind!r}{format_suggestion(str(kind), MODELS)} "
            f"(for a kind of your own, set {PLUGIN_VARIABLE} to the module that adds it)"
        )
    defaults = {field.name: field.default for field in dataclasses.fields(MODELS[kind][0])}
    return {**recipe, "model": {**defaults, **model}}


def _zero_padding_embeddings_(model: Model) -> Model:
    """Set the PAD row of every embedding to zero, whatever the initialisation."""
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            with torch.no_grad():
                module.weight[module.padding_idx].zero_()
    return model


_INIT_FUNCTIONS = {"normal_", "uniform_", "zero_", "fill_"}


class SkipInit(TorchFunctionMode):
    """Skip weight initialisation: on the meta device it has no effect, and PyTorch spends much time on it."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(function, "__name__", "") in _INIT_FUNCTIONS:
            return args[0] if args else (kwargs or {})["tensor"]
        return function(*args, **(kwargs or {}))


def build_on_meta(config: str | Mapping[str, Any], source_size: int, target_size: int) -> Any:
    """Build the model on the meta device: names and shapes of the weights, no data."""
    with torch.device("meta"), SkipInit():
        return build(config, source_size, target_size)
