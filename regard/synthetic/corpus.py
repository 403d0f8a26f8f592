"""The files of a generated corpus, and the overrides that make a recipe small enough for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.recipes import Recipe


class SyntheticCorpus(NamedTuple):
    """Embedded data of a task, written to a folder, and what makes a recipe small enough for it."""

    train: Sequence[Path]
    dev: Sequence[Path]
    test: Sequence[Path]
    overrides: Mapping[str, Any]  # dotted keys, which one recipe of the task or another may lack

    def select_overrides(self, recipe: Recipe) -> dict[str, Any]:
        """The changes that a recipe has keys for."""
        dotted = {key: key.split(".", 1) for key in self.overrides}
        return {key: self.overrides[key] for key, (section, name) in dotted.items() if name in recipe[section]}
