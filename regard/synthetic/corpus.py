"""Files of a synthetic corpus, and recipe overrides for a model that is small enough for it.

The words of the corpora and the overrides are in `corpora.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from regard.paths import read_package_yaml
from regard.recipes.recipe import Recipe


class SyntheticCorpus(NamedTuple):
    """Files of a synthetic corpus, and recipe overrides for a small model."""

    train: Sequence[Path]
    dev: Sequence[Path]
    test: Sequence[Path]
    overrides: Mapping[str, Any]  # dotted keys; not every recipe of the task has all of them
    overrides_by_kind: Mapping[str, Mapping[str, Any]] = MappingProxyType({})  # further ones, by `model.kind`

    def select_overrides(self, recipe: Recipe) -> dict[str, Any]:
        """Return the overrides whose keys the recipe has."""
        overrides = {**self.overrides, **self.overrides_by_kind.get(recipe["model"]["kind"], {})}
        dotted = {key: key.split(".", 1) for key in overrides}
        return {key: overrides[key] for key, (section, name) in dotted.items() if name in recipe[section]}


@cache
def load_corpus_words() -> dict[str, dict[str, Any]]:
    """Return the words and the recipe overrides of each task's corpus."""
    words: dict[str, dict[str, Any]] = read_package_yaml("regard.synthetic", "corpora.yaml")
    return words


def write_splits(folder: Path, task: str, suffix: str, make_text: Callable[[str, int], str]) -> SyntheticCorpus:
    """Write `train`, `dev` and `test` of a task, each with the text that `make_text(name, size)` returns."""
    folder.mkdir(parents=True, exist_ok=True)
    words = load_corpus_words()[task]
    paths = {name: folder / f"{name}{suffix}" for name in words["sizes"]}
    for name, size in words["sizes"].items():
        paths[name].write_text(make_text(name, size), encoding="utf-8")
    return SyntheticCorpus([paths["train"]], [paths["dev"]], [paths["test"]], words["overrides"])


def write_distinct_splits(folder: Path, task: str, suffix: str, draw: Callable[[], str]) -> SyntheticCorpus:
    """Write `train`, `dev` and `test` of a task, without repeated examples."""
    seen: set[str] = set()

    def draw_new() -> str:
        while (example := draw()) in seen:
            pass
        seen.add(example)
        return example

    return write_splits(folder, task, suffix, lambda _, size: "".join(draw_new() for _ in range(size)))
