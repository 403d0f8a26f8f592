"""Files of a synthetic corpus, and recipe overrides for a model that is small enough for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.recipes import Recipe


class SyntheticCorpus(NamedTuple):
    """Files of a synthetic corpus, and recipe overrides for a small model."""

    train: Sequence[Path]
    dev: Sequence[Path]
    test: Sequence[Path]
    overrides: Mapping[str, Any]  # dotted keys; not every recipe of the task has all of them

    def select_overrides(self, recipe: Recipe) -> dict[str, Any]:
        """Return the overrides whose keys the recipe has."""
        dotted = {key: key.split(".", 1) for key in self.overrides}
        return {key: self.overrides[key] for key, (section, name) in dotted.items() if name in recipe[section]}
