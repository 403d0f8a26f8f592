"""From a recipe to a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from regard.config import parse
from regard.errors import UserError, nearest
from regard.models import bahdanau, cho, luong, mino, sutskever, transformer
from regard.models.criterion import CrossEntropy, LossSettings
from regard.models.seq2seq import Seq2Seq
from regard.recipes.recipe import override, read
from regard.recipes.sizes import sized

Builder = Callable[[Any, int, int, CrossEntropy], Seq2Seq]

KINDS: dict[str, tuple[type, Builder]] = {
    "bahdanau": (bahdanau.BahdanauSettings, bahdanau.build),
    "cho": (cho.ChoSettings, cho.build),
    "luong": (luong.LuongSettings, luong.build),
    "luong-local-m": (luong.LocalSettings, luong.build_local_m),
    "luong-local-p": (luong.LocalSettings, luong.build_local_p),
    "mino": (mino.MinoSettings, mino.build),
    "sutskever": (sutskever.SutskeverSettings, sutskever.build),
    "transformer": (transformer.TransformerSettings, transformer.build),
}


def build(config: str | Mapping[str, Any], source_size: int, target_size: int, **overrides: Any) -> Seq2Seq:
    """A model by its recipe's name, or by a recipe as a mapping, for vocabularies of the given sizes.

    Overrides are keys of the recipe's `model` section: `build("luong2015-global", 8000, 8000, size=256, score="dot")`.
    """
    recipe = read(config) if isinstance(config, str) else config
    recipe = sized(override(recipe, {f"model.{key}": value for key, value in overrides.items()}))
    model = dict(recipe["model"])
    kind = model.pop("kind", None)
    if kind not in KINDS:
        raise UserError(f"there is no model.kind {kind!r}{nearest(str(kind), KINDS)}")
    settings_class, builder = KINDS[kind]
    settings: Any = parse(settings_class, model, "model")
    criterion = CrossEntropy(parse(LossSettings, recipe.get("loss", {}), "loss"))
    try:
        return builder(settings, source_size, target_size, criterion)
    except ValueError as error:
        raise UserError(f"model: {error}") from error
