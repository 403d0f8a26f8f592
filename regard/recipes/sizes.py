"""How large a model a corpus can feed: what `auto` stands for in the recipe `default`.

Small corpora want small, strongly regularised models and few pieces; the rows are rules of thumb from published
low-resource settings (4 layers of 128 to 256 for some ten thousand pairs, Transformer base from a million on).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from regard.recipes.recipe import Recipe, override


class Row(NamedTuple):
    """What suits corpora below a number of pairs."""

    below: float
    size: int
    layers: int
    heads: int
    dropout: float
    vocabulary: int
    batch_tokens: int
    learning_rate: float


TABLE = (
    Row(10_000, 128, 3, 4, 0.3, 2_000, 3_000, 0.002),
    Row(50_000, 256, 4, 4, 0.3, 6_000, 9_000, 0.002),
    Row(200_000, 256, 5, 4, 0.3, 10_000, 9_000, 0.0015),
    Row(1_000_000, 512, 6, 8, 0.2, 16_000, 12_000, 0.001),
    Row(float("inf"), 512, 6, 8, 0.1, 32_000, 16_000, 0.001),
)
SECTION = {
    "vocabulary": "text",
    "batch_tokens": "training",
    "learning_rate": "training",
}  # the others belong to `model`
USUAL = 100_000  # pairs, where nobody has said


def sized(recipe: Mapping[str, Any], pairs: int = USUAL) -> Recipe:
    """The recipe with each `auto` replaced by what suits a corpus of so many pairs, and nothing else changed."""
    row = next(row for row in TABLE if pairs < row.below)
    wanted = {f"{SECTION.get(name, 'model')}.{name}": value for name, value in row._asdict().items() if name != "below"}
    auto = {key: value for key, value in wanted.items() if asks(recipe, key)}
    kept = {f"model.{name}": value for name, value in recipe.get("model", {}).items() if name == "embedding"}
    return override(recipe, kept | auto)


def asks(recipe: Mapping[str, Any], key: str) -> bool:
    """Whether a key of the recipe is `auto`."""
    section, name = key.split(".")
    return bool(recipe.get(section, {}).get(name) == "auto")
