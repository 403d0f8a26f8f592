"""The recipes that come with regard, and what a user may change in them."""

import dataclasses
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.corpora import translation_recipes

from regard import recipes
from regard.config import parse
from regard.errors import UserError
from regard.models.builder import KINDS
from regard.models.criterion import LossSettings
from regard.recipes import names, override, parse_override, read, sized
from regard.recipes.sizes import TABLE
from regard.tasks import task_of
from regard.training.settings import TrainingSettings

NAMES = names()
EVERYWHERE = (
    "model.size",
    "model.layers",
    "model.dropout",
    "training.steps",
    "training.seed",
    "training.batch_tokens",
    "training.learning_rate",
    "training.validate_every",
    "training.checkpoint_every",
)
KEY = re.compile(r"\s*[a-z_]+:")
SIZED = (
    "model.size",
    "model.layers",
    "model.heads",
    "model.dropout",
    "text.vocabulary",
    "training.batch_tokens",
    "training.learning_rate",
)
FALLING = ("model.dropout", "training.learning_rate")


def at(recipe: dict[str, Any], key: str) -> Any:
    section, name = key.split(".")
    return recipe[section][name]


def has(recipe: dict[str, Any], key: str) -> bool:
    section, name = key.split(".")
    return name in recipe[section]


def fields(cls: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


def sections(recipe: dict[str, Any]) -> dict[str, type]:
    task = task_of(recipe)
    return {"loss": LossSettings, "text": task.text, "data": task.data, "training": TrainingSettings}


def model_settings(recipe: dict[str, Any]) -> type:
    return KINDS[recipe["model"]["kind"]][0]


def written(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def complaint(name: str | Path) -> str:
    with pytest.raises(UserError) as caught:
        read(name)
    return str(caught.value)


def test_the_papers_are_there() -> None:
    assert {"default", "bahdanau2015", "luong2015-global", "vaswani2017-base"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_carries_a_comment(name: str) -> None:
    bare = [
        line
        for line in recipes.text(name).splitlines()
        if KEY.match(line)
        and not re.search(r"\s# \S", line)
        and line.rstrip(":") not in ("model", "loss", "text", "data", "training")
    ]
    assert bare == []
    assert recipes.text(name).startswith("# "), "the first line says what the recipe is"


@pytest.mark.parametrize("name", translation_recipes())
def test_every_setting_is_written_out_and_parses(name: str) -> None:
    recipe = sized(read(name))
    model = dict(recipe["model"])
    del model["kind"]
    assert set(model) == fields(model_settings(recipe))
    parse(model_settings(recipe), model, "model")
    for section, cls in sections(recipe).items():
        if section == "loss" and name not in translation_recipes():  # not every loss is of every task
            assert set(recipe[section]) <= fields(cls)
        else:
            assert set(recipe[section]) == fields(cls), section
        parse(cls, recipe[section], section)
    assert set(recipe) == {"recipe", "paper", "task", "model", *sections(recipe)}
    assert recipe["recipe"] == name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", EVERYWHERE)
def test_the_promised_keys_are_in_every_recipe(name: str, key: str) -> None:
    assert has(read(name), key)


@pytest.mark.parametrize("name", translation_recipes())
@pytest.mark.parametrize("key", ["text.vocabulary", "text.kind"])
def test_the_promised_keys_are_in_every_recipe_that_translates(name: str, key: str) -> None:
    assert has(read(name), key)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_survives_being_written_and_read(name: str, tmp_path: Path) -> None:
    recipe = read(name)
    copied = written(tmp_path, yaml.safe_dump(recipe, sort_keys=False), "copy.yaml")
    assert read(copied) == recipe
    printed = written(tmp_path, recipes.text(name), "printed.yaml")
    assert read(printed) == recipe | {"recipe": "printed"}


def test_an_unknown_recipe_is_named_with_the_nearest() -> None:
    assert complaint("bahdanau2016") == "there is no recipe 'bahdanau2016'; did you mean 'bahdanau2015'?"
    with pytest.raises(UserError, match="there is no recipe"):
        recipes.text("../recipes/default")


def test_override_changes_a_copy() -> None:
    recipe = read("luong2015-global")
    changed = override(recipe, {"model.score": "dot", "training.steps": 10})
    assert (at(changed, "model.score"), at(changed, "training.steps")) == ("dot", 10)
    assert recipe == read("luong2015-global")
    changed["model"]["layers"] = 99
    assert recipe == read("luong2015-global")


def test_override_without_changes_changes_nothing() -> None:
    for name in NAMES:
        assert override(read(name), {}) == read(name)


@pytest.mark.parametrize(
    ("key", "right"),
    [("model.sise", "model.size"), ("trainin.steps", "training.steps"), ("text.vocab", "text.vocabulary")],
)
def test_an_unknown_key_is_named_with_the_nearest(key: str, right: str) -> None:
    with pytest.raises(UserError) as caught:
        override(read("default"), {key: 1})
    assert str(caught.value) == f"recipe 'default' has no key {key!r}; did you mean {right!r}?"


@pytest.mark.parametrize("key", ["size", "model", "model.", "model.size.x", ".", "", "recipe"])
def test_keys_that_are_no_section_and_name_are_unknown(key: str) -> None:
    with pytest.raises(UserError, match="has no key"):
        override(read("default"), {key: 1})


def test_a_new_size_carries_the_embedding() -> None:
    recipe = read("bahdanau2015")
    assert at(recipe, "model.embedding") == 620
    assert at(override(recipe, {"model.size": 64}), "model.embedding") is None
    assert at(override(recipe, {"model.size": 64, "model.embedding": 32}), "model.embedding") == 32
    assert at(override(recipe, {"model.layers": 2}), "model.embedding") == 620


def test_a_new_size_adds_no_embedding_where_a_model_has_none() -> None:
    assert "embedding" not in override(read("default"), {"model.size": 64})["model"]


def test_a_file_builds_on_a_recipe(tmp_path: Path) -> None:
    path = written(tmp_path, "base: bahdanau2015\nmodel: {size: 64}\ntraining:\n  learning_rate: 1e-3\n")
    expected = override(read("bahdanau2015"), {"model.size": 64, "training.learning_rate": "1e-3"})
    assert read(path) == expected | {"recipe": "mine"}
    assert at(read(path), "model.embedding") is None
    assert parse(TrainingSettings, read(path)["training"], "training").learning_rate == 0.001


def test_a_file_builds_on_a_file_beside_it(tmp_path: Path) -> None:
    written(tmp_path, "base: default\nmodel: {layers: 2, heads: 2}\n", "first.yaml")
    second = written(tmp_path, "base: first.yaml\nmodel: {layers: 3}\npaper: none\n", "second.yml")
    found = read(second)
    assert (at(found, "model.layers"), at(found, "model.heads"), found["recipe"]) == (3, 2, "second")
    assert found["paper"] == "none"
    assert found["text"] == read("default")["text"]


def test_a_file_is_not_its_own_base(tmp_path: Path) -> None:
    written(tmp_path, "base: b.yaml\n", "a.yaml")
    assert "is its own base" in complaint(written(tmp_path, "base: a.yaml\n", "b.yaml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: defualt\n", "did you mean 'default'?"),
        ("base: 7\n", "base is the name of a recipe or of a file, not 7"),
        ("base: gone.yaml\n", "there is no recipe file"),
        ("base: default\nmodel: {sise: 3}\n", "has no key 'model.sise'; did you mean 'model.size'?"),
        ("base: default\nmodle: {size: 3}\n", "unknown section 'modle'; did you mean 'model'?"),
        ("model: [1\n", "is not YAML"),
        ("model: {a: 2024-99-99}\n", "is not YAML"),
        ("{[}", "is not YAML"),
        ("- model\n", "it holds list, not sections"),
        ("", "it holds NoneType, not sections"),
        ("just words", "it holds str, not sections"),
        ("model:\n", "section 'model' holds keys with values, not None"),
        ("training: 5\n", "section 'training' holds keys with values, not 5"),
        ("1: 2\n", "unknown section 1"),
        ("model: !!python/object/apply:os.getcwd []\n", "is not YAML"),
    ],
)
def test_a_bad_file_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    complained = complaint(written(tmp_path, text))
    assert said in complained
    assert "\n" not in complained


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    assert complaint(tmp_path / "gone.yaml") == f"there is no recipe file {tmp_path / 'gone.yaml'}"
    path = tmp_path / "bytes.yaml"
    path.write_bytes(b"paper: \xff\n")
    assert complaint(path) == f"{path} is not UTF-8 (byte 8)"


@pytest.mark.parametrize(
    ("argument", "key", "value"),
    [
        ("model.size=256", "model.size", 256),
        ("model.dropout=0.5", "model.dropout", 0.5),
        ("text.shared=false", "text.shared", False),
        ("training.steps=null", "training.steps", None),
        ("training.betas=[0.9, 0.98]", "training.betas", [0.9, 0.98]),
        ("text.kind=bpe", "text.kind", "bpe"),
        ("data.target=no", "data.target", "no"),
        ("data.source=", "data.source", None),
        ("data.source=a=b", "data.source", "a=b"),
        ("data.source=2024-99-99", "data.source", "2024-99-99"),
        ("data.source=[", "data.source", "["),
        (" model.size = 4", "model.size", 4),
    ],
)
def test_an_override_on_the_command_line_is_yaml(argument: str, key: str, value: Any) -> None:
    found = parse_override(argument)
    assert found == (key, value)
    assert type(found[1]) is type(value)


@given(st.integers(0, 3_000_000))
def test_sized_leaves_no_auto_and_touches_nothing_else(pairs: int) -> None:
    recipe = read("default")
    found = sized(recipe, pairs)
    for section, values in recipe.items():
        if isinstance(values, dict) and section != "training":
            left = {key for key, value in found[section].items() if value == "auto"}
            assert left == ({"align_layer"} if section == "model" else set()), "this one is found when training ends"
        for key in values if isinstance(values, dict) else ():
            if f"{section}.{key}" not in SIZED:
                assert found[section][key] == values[key]
    assert at(found, "model.size") % at(found, "model.heads") == 0
    assert isinstance(at(found, "training.batch_tokens"), int)


def test_sizes_grow_and_dropout_falls_with_the_corpus() -> None:
    found = [sized(read("default"), pairs) for pairs in (1000, 20_000, 100_000, 500_000, 5_000_000)]
    for key in SIZED:
        values = [at(recipe, key) for recipe in found]
        assert values == sorted(values, reverse=key in FALLING), key
    assert (at(found[0], "model.size"), at(found[-1], "model.size")) == (128, 512)


def test_sizes_change_at_the_rows_of_the_table() -> None:
    for row, following in pairwise(TABLE):
        below, at_it = int(row.below) - 1, int(row.below)
        assert at(sized(read("default"), below), "text.vocabulary") == row.vocabulary
        assert at(sized(read("default"), at_it), "text.vocabulary") == following.vocabulary


def test_what_is_given_is_not_auto() -> None:
    given_sizes = override(read("default"), {"model.size": 96, "model.dropout": 0.0})
    found = sized(given_sizes, 1000)
    assert (at(found, "model.size"), at(found, "model.dropout"), at(found, "model.layers")) == (96, 0.0, 3)


def test_an_automatic_size_keeps_an_embedding_that_was_given() -> None:
    recipe = override(read("bahdanau2015"), {"model.size": "auto", "model.embedding": 100})
    assert (at(sized(recipe, 1000), "model.size"), at(sized(recipe, 1000), "model.embedding")) == (128, 100)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "default"])
def test_a_papers_recipe_has_nothing_to_size(name: str) -> None:
    assert sized(read(name), 10) == read(name)
