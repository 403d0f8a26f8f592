"""The parsed config of a run: defaults, sections, `auto`, overrides."""

from __future__ import annotations

import pytest

from regard.errors import UserError
from regard.recipes import read_recipe
from regard.tasks import TASKS

TASK = TASKS["translate"]


def test_keys_of_later_versions_take_their_defaults() -> None:
    recipe = read_recipe("bahdanau2015")
    older = {**recipe, "training": {name: value for name, value in recipe["training"].items() if name != "keep_best"}}
    config = TASK.make_config(older)
    assert config.training.keep_best == config.recipe["training"]["keep_best"] == 1
    assert config.recipe.keys() == recipe.keys()
    assert config.training.betas == tuple(config.recipe["training"]["betas"]), "a list in config.yaml"


def test_auto_reads_as_its_default_until_the_size_of_the_corpus_is_known() -> None:
    config = TASK.make_config(read_recipe("default"))
    assert config.recipe["text"]["vocabulary"] == config.recipe["training"]["batch_tokens"] == "auto"
    assert (config.text.vocabulary, config.training.batch_tokens) == (10_000, 9_000)
    small = config.resolve_auto_sizes(1000)
    assert (small.text.vocabulary, small.recipe["training"]["batch_tokens"], small.model["size"]) == (2_000, 3_000, 128)


def test_overridden_config_is_parsed_again() -> None:
    config = TASK.make_config(read_recipe("default"))
    assert config.training.seed == 1
    changed = config.override({"training.seed": 7, "data.train": ["a.tsv"]})
    assert (changed.training.seed, changed.data.train, config.training.seed) == (7, ("a.tsv",), 1)


def test_error_in_a_section_does_not_hide_the_others() -> None:
    config = TASK.make_config(read_recipe("default")).override({"training.keep": 0})
    assert config.data.max_length > 0
    with pytest.raises(UserError, match="training: keep must be at least 1, not 0"):
        _ = config.training
