"""Built-in recipes, recipe files, overrides, automatic sizes, and the parsed config of a run."""

import dataclasses
import hashlib
import json
import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.corpora import translation_recipes

from regard.config import parse_settings
from regard.errors import UserError
from regard.models.base import CrossEntropy
from regard.models.registry import MODELS
from regard.recipes.recipe import (
    AUTO_SIZES,
    RECIPES_FOLDER,
    SECTIONS_FOLDER,
    EvaluationSettings,
    TrainingSettings,
    list_recipes,
    override,
    parse_override,
    read_recipe,
    read_recipe_text,
    resolve_auto_sizes,
)
from regard.tasks import TASKS, get_task

NAMES = list_recipes()
TRANSLATION_NAMES = translation_recipes()
COMMON_KEYS = (
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
KEY_LINE = re.compile(r"\s*[a-z_]+:")
SIZED_KEYS = (
    "model.size",
    "model.layers",
    "model.heads",
    "model.dropout",
    "text.vocabulary",
    "training.batch_tokens",
    "training.learning_rate",
)
FALLING_KEYS = ("model.dropout", "training.learning_rate")
SCHEDULE_KEYS = (
    "training.steps",
    "training.warmup",
    "training.ema",
    "training.validate_every",
    "training.validate_pairs",
    "training.checkpoint_every",
    "training.patience",
)


def value_at(recipe: dict[str, Any], key: str) -> Any:
    section, name = key.split(".")
    return recipe[section][name]


def has_key(recipe: dict[str, Any], key: str) -> bool:
    section, name = key.split(".")
    return name in recipe[section]


def field_names(cls: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


def section_settings(recipe: dict[str, Any]) -> dict[str, type]:
    task = get_task(recipe)
    settings: dict[str, type] = {"loss": CrossEntropy, "text": task.text_settings, "data": task.data_settings}
    return settings | {"training": TrainingSettings, "evaluation": EvaluationSettings}


def model_settings(recipe: dict[str, Any]) -> type:
    return MODELS[recipe["model"]["kind"]][0]


def write_recipe(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def error_of(name: str | Path) -> str:
    with pytest.raises(UserError) as caught:
        read_recipe(name)
    return str(caught.value)


def test_main_recipes_exist() -> None:
    assert {"default", "bahdanau2015", "luong2015-global", "vaswani2017-base"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_has_a_comment(name: str) -> None:
    bare = [
        line
        for line in read_recipe_text(name).splitlines()
        if KEY_LINE.match(line)
        and not re.search(r"\s# \S", line)
        and line.rstrip(":") not in ("model", "loss", "text", "data", "training", "evaluation")
    ]
    assert bare == []
    assert read_recipe_text(name).startswith("# "), "the first line describes the recipe"


@pytest.mark.parametrize("name", TRANSLATION_NAMES)
def test_recipe_states_every_setting_and_parses(name: str) -> None:
    recipe = resolve_auto_sizes(read_recipe(name))
    model = dict(recipe["model"])
    del model["kind"]
    assert set(model) == field_names(model_settings(recipe))
    parse_settings(model_settings(recipe), model, "model")
    for section, cls in section_settings(recipe).items():
        assert set(recipe[section]) == field_names(cls), section
        parse_settings(cls, recipe[section], section)
    assert set(recipe) == {"recipe", "paper", "task", "model", *section_settings(recipe)}
    assert recipe["recipe"] == name


@pytest.mark.parametrize("name", NAMES)
def test_common_keys_are_in_every_recipe(name: str) -> None:
    recipe = read_recipe(name)
    text = ("text.vocabulary", "text.kind") if name in TRANSLATION_NAMES else ()
    assert [key for key in (*COMMON_KEYS, *text) if not has_key(recipe, key)] == []


@pytest.mark.parametrize("name", NAMES)
def test_recipe_survives_writing_and_reading(name: str, tmp_path: Path) -> None:
    recipe = read_recipe(name)
    copied = write_recipe(tmp_path, yaml.safe_dump(recipe, sort_keys=False), "copy.yaml")
    assert read_recipe(copied) == recipe
    printed = write_recipe(tmp_path, read_recipe_text(name), "printed.yaml")
    assert read_recipe(printed) == recipe | {"recipe": "printed"}


# SHA-256 of the resolved recipes as sorted JSON: a change of a shared section must not change a recipe by accident.
DIGESTS = {
    "bahdanau2015": "440770f2483dcf82",
    "cho2014": "ff8fb918c1618e76",
    "cui2017": "a42f939b6621e89a",
    "default": "ae1e2fd6a5123f79",
    "default-classification": "8a72c215a0fb51bd",
    "default-tagging": "b7a00728e1fa83bb",
    "lin2017": "7f3eeb1946e0d883",
    "luong2015-global": "610acef1977df042",
    "luong2015-local-m": "7eabcf45bf9103c4",
    "luong2015-local-p": "dc12680ec8ad9a74",
    "mino2017": "7fde2b2c4040e857",
    "schuster1997": "084bb5775487167d",
    "schuster1997-regression": "d521b5fe82e4db01",
    "sutskever2014": "9207514b04a10f1c",
    "vaswani2017-base": "6b839d77e78423bf",
    "vaswani2017-big": "ad4be368ad98eb68",
    "xu2015-hard": "2ab148b0b2b81c3b",
    "xu2015-hard-caption": "159eef1e381d1023",
    "xu2015-soft": "36139851cbc5710b",
    "xu2015-soft-caption": "e785bc904b51c33c",
    "yang2016": "22cc8cb0cf86adbe",
}


@pytest.mark.parametrize("name", NAMES)
def test_sections_resolve_to_the_recipe_of_the_paper(name: str) -> None:
    text = json.dumps(read_recipe(name), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert digest == DIGESTS.get(name), f"{name} is new or has changed; if intended, its entry in DIGESTS is {digest!r}"


@pytest.mark.parametrize("name", NAMES)
def test_shipped_recipes_are_short(name: str) -> None:
    assert len((RECIPES_FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()) <= 35


def test_wheel_contains_recipes_and_sections() -> None:
    root = RECIPES_FOLDER.parent
    patterns = tomllib.loads((root.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    found = {path for pattern in patterns["package-data"]["regard"] for path in root.glob(pattern)}
    assert found >= set(RECIPES_FOLDER.rglob("*.yaml"))
    assert len(list(SECTIONS_FOLDER.glob("*.yaml"))) > 5


def test_printed_recipe_has_values_of_the_file_and_comments_of_its_base(tmp_path: Path) -> None:
    path = write_recipe(tmp_path, "# Mine.\nbase: luong2015-global\nmodel: {size: 64}\ndata: {target: 'no'}\n")
    text = read_recipe_text(path)
    assert text.startswith("# Mine.\npaper: ")
    assert re.search(r"^  size: 64 +# hidden size, per direction", text, re.MULTILINE)
    saved = write_recipe(tmp_path, text, "saved.yaml")
    assert read_recipe(saved) == read_recipe(path) | {"recipe": "saved"}


def test_unknown_recipe_suggests_the_nearest_one() -> None:
    assert error_of("bahdanau2016") == "unknown recipe 'bahdanau2016'; did you mean 'bahdanau2015'?"
    with pytest.raises(UserError, match="unknown recipe"):
        read_recipe_text("../recipes/default")


def test_override_changes_a_copy() -> None:
    recipe = read_recipe("luong2015-global")
    changed = override(recipe, {"model.score": "dot", "training.steps": 10})
    assert (value_at(changed, "model.score"), value_at(changed, "training.steps")) == ("dot", 10)
    assert recipe == read_recipe("luong2015-global")
    changed["model"]["layers"] = 99
    assert recipe == read_recipe("luong2015-global")


def test_override_without_changes_changes_nothing() -> None:
    for name in NAMES:
        assert override(read_recipe(name), {}) == read_recipe(name)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("model.sise", "model.size"), ("trainin.steps", "training.steps"), ("text.vocab", "text.vocabulary")],
)
def test_unknown_override_suggests_the_nearest_key(key: str, nearest: str) -> None:
    with pytest.raises(UserError) as caught:
        override(read_recipe("default"), {key: 1})
    assert str(caught.value) == f"recipe 'default' has no key {key!r}; did you mean {nearest!r}?"


@pytest.mark.parametrize("key", ["size", "model", "model.", "model.size.x", ".", "", "recipe"])
def test_malformed_override_keys_are_refused(key: str) -> None:
    with pytest.raises(UserError, match="has no key"):
        override(read_recipe("default"), {key: 1})


def test_new_model_size_resets_the_embedding_size() -> None:
    recipe = read_recipe("bahdanau2015")
    assert value_at(recipe, "model.embedding") == 620
    assert value_at(override(recipe, {"model.size": 64}), "model.embedding") is None
    assert value_at(override(recipe, {"model.size": 64, "model.embedding": 32}), "model.embedding") == 32
    assert value_at(override(recipe, {"model.layers": 2}), "model.embedding") == 620


def test_new_model_size_adds_no_embedding_key() -> None:
    assert "embedding" not in override(read_recipe("default"), {"model.size": 64})["model"]


def test_recipe_file_extends_a_recipe(tmp_path: Path) -> None:
    path = write_recipe(tmp_path, "base: bahdanau2015\nmodel: {size: 64}\ntraining:\n  learning_rate: 1e-3\n")
    expected = override(read_recipe("bahdanau2015"), {"model.size": 64, "training.learning_rate": "1e-3"})
    assert read_recipe(path) == expected | {"recipe": "mine"}
    assert value_at(read_recipe(path), "model.embedding") is None
    assert parse_settings(TrainingSettings, read_recipe(path)["training"], "training").learning_rate == 0.001


def test_recipe_file_extends_another_file(tmp_path: Path) -> None:
    write_recipe(tmp_path, "base: default\nmodel: {layers: 2, heads: 2}\n", "first.yaml")
    second = write_recipe(tmp_path, "base: first.yaml\nmodel: {layers: 3}\npaper: none\n", "second.yml")
    found = read_recipe(second)
    assert (value_at(found, "model.layers"), value_at(found, "model.heads"), found["recipe"]) == (3, 2, "second")
    assert found["paper"] == "none"
    assert found["text"] == read_recipe("default")["text"]


def test_recipe_file_without_base_or_sections_is_refused(tmp_path: Path) -> None:
    message = error_of(write_recipe(tmp_path, "model: {kind: luong, size: 32}\n"))
    assert "has no section loss or text or data or training; begin it with the recipe that it changes" in message
    sections = "".join(f"{name}: {{}}\n" for name in ("model", "loss", "text", "data", "training"))
    assert "has no model.kind" in error_of(write_recipe(tmp_path, sections))


def test_circular_base_is_refused(tmp_path: Path) -> None:
    write_recipe(tmp_path, "base: b.yaml\n", "a.yaml")
    assert "is its own base" in error_of(write_recipe(tmp_path, "base: a.yaml\n", "b.yaml"))


def test_errors_of_a_base_show_the_chain_of_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    first = write_recipe(tmp_path, "base: [default, in/second.yaml]\n", "first.yaml")
    second = write_recipe(tmp_path, "base: ../first.yaml\n", "in/second.yaml")
    again = tmp_path / "in/../first.yaml"
    assert error_of(first) == f"{again} is its own base ({first} → {second} → ../first.yaml)"
    write_recipe(tmp_path, "base: atention\n", "in/second.yaml")
    unknown = "unknown recipe or section 'atention'; did you mean 'attention'?"
    assert error_of(first) == f"{unknown} ({first} → {second} → atention)"
    assert error_of("attention").startswith("unknown recipe 'attention';")


def test_later_bases_override_earlier_ones(tmp_path: Path) -> None:
    write_recipe(tmp_path, "training: {steps: 7, warmup: 3}\nmodel: {size: 99}\n", "short.yaml")
    path = write_recipe(tmp_path, "base: [bahdanau2015, short.yaml]\ntraining: {warmup: 5}\n")
    changes = {"training.steps": 7, "training.warmup": 5, "model.size": 99}
    assert read_recipe(path) == override(read_recipe("bahdanau2015"), changes) | {"recipe": "mine"}
    short = write_recipe(tmp_path, "training: {stepz: 7}\n", "short.yaml")
    assert "has no key 'training.stepz'; did you mean 'training.steps'?" in error_of(path)
    assert "has no section model" in error_of(short)


def test_recipe_file_is_built_from_sections(tmp_path: Path) -> None:
    sections = "base: [translation, rnn, attention]\n"
    own_keys = "model: {kind: luong, score: dot, input_feeding: true, initialisation: torch}\n"
    recipe = read_recipe(write_recipe(tmp_path, sections + own_keys))
    model = {key: value for key, value in recipe["model"].items() if key != "kind"}
    assert parse_settings(model_settings(recipe), model, "model").score == "dot"
    assert recipe["data"] == read_recipe("luong2015-global")["data"]
    assert "has no model.kind" in error_of(write_recipe(tmp_path, sections))


def test_another_model_kind_may_add_keys_to_the_model_only(tmp_path: Path) -> None:
    path = write_recipe(tmp_path, "base: luong2015-global\nmodel: {kind: mine, width: 64}\n")
    assert read_recipe(path)["model"] == {**read_recipe("luong2015-global")["model"], "kind": "mine", "width": 64}
    write_recipe(tmp_path, "base: luong2015-global\nmodel: {kind: mine}\ntext: {width: 64}\n")
    assert "has no key 'text.width'" in error_of(path)
    write_recipe(tmp_path, "base: luong2015-global\nmodel: {kind: luong, width: 64}\n")
    assert "has no key 'model.width'" in error_of(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: defualt\n", "did you mean 'default'?"),
        ("base: 7\n", "base must be the name of a recipe or of a file, not 7"),
        ("base: gone.yaml\n", "does not exist"),
        ("base: default\nmodel: {sise: 3}\n", "has no key 'model.sise'; did you mean 'model.size'?"),
        ("base: default\nmodle: {size: 3}\n", "unknown section 'modle'; did you mean 'model'?"),
        ("model: [1\n", "is not YAML"),
        ("model: {a: 2024-99-99}\n", "is not YAML"),
        ("{[}", "is not YAML"),
        ("- model\n", "it contains list, not sections"),
        ("", "it contains NoneType, not sections"),
        ("just words", "it contains str, not sections"),
        ("model:\n", "section 'model' must contain keys with values, not None"),
        ("training: 5\n", "section 'training' must contain keys with values, not 5"),
        ("1: 2\n", "unknown section 1"),
        ("model: !!python/object/apply:os.getcwd []\n", "is not YAML"),
    ],
)
def test_invalid_recipe_file_is_a_one_line_error(text: str, message: str, tmp_path: Path) -> None:
    error = error_of(write_recipe(tmp_path, text))
    assert message in error
    assert "\n" not in error


def test_missing_or_binary_recipe_file_is_a_user_error(tmp_path: Path) -> None:
    assert error_of(tmp_path / "gone.yaml") == f"the recipe file {tmp_path / 'gone.yaml'} does not exist"
    path = tmp_path / "bytes.yaml"
    path.write_bytes(b"paper: \xff\n")
    assert error_of(path) == f"{path} is not UTF-8 (byte 8)"


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
    ids=str,
)
def test_command_line_override_is_yaml(argument: str, key: str, value: Any) -> None:
    found = parse_override(argument)
    assert found == (key, value)
    assert type(found[1]) is type(value)


@given(st.integers(0, 3_000_000), st.sampled_from(["gpu", "cpu"]))
def test_sizing_replaces_auto_values_only(pairs: int, table: str) -> None:
    recipe = read_recipe("default")
    found = resolve_auto_sizes(recipe, pairs, table)
    for section, values in recipe.items():
        if isinstance(values, dict) and section != "evaluation":
            left = {key for key, value in found[section].items() if value == "auto"}
            kept = {"model": {"align_layer"}, "training": {"device"}}  # chosen later
            assert left == kept.get(section, set())
        for key in values if isinstance(values, dict) else ():
            if f"{section}.{key}" not in (*SIZED_KEYS, *SCHEDULE_KEYS):
                assert found[section][key] == values[key]
    assert value_at(found, "model.size") % value_at(found, "model.heads") == 0
    assert isinstance(value_at(found, "training.batch_tokens"), int)


def test_sizes_grow_and_dropout_falls_with_the_corpus() -> None:
    found = [resolve_auto_sizes(read_recipe("default"), pairs) for pairs in (1000, 20_000, 100_000, 500_000, 5_000_000)]
    for key in SIZED_KEYS:
        values = [value_at(recipe, key) for recipe in found]
        assert values == sorted(values, reverse=key in FALLING_KEYS), key
    assert (value_at(found[0], "model.size"), value_at(found[-1], "model.size")) == (128, 512)


def test_warmup_and_first_validation_fit_the_corpus() -> None:
    """A small corpus has fewer updates in an epoch, and a CPU fewer in a minute."""
    for key in ("training.steps", "training.warmup"):
        for table in ("gpu", "cpu"):
            values = [value_at(resolve_auto_sizes(read_recipe("default"), pairs, table), key) for pairs in CORPUS_SIZES]
            assert values == sorted(values), key
    for pairs in CORPUS_SIZES:
        on_gpu, on_cpu = (resolve_auto_sizes(read_recipe("default"), pairs, table) for table in ("gpu", "cpu"))
        for key in ("model.size", "model.layers", "training.batch_tokens", "training.validate_every"):
            assert value_at(on_cpu, key) <= value_at(on_gpu, key), key


CORPUS_SIZES = (1000, 20_000, 100_000, 500_000, 5_000_000)


def test_sizes_change_at_the_rows_of_the_table() -> None:
    for (pairs, values), (_, following) in pairwise(AUTO_SIZES["gpu"].items()):
        below, at_it = (resolve_auto_sizes(read_recipe("default"), int(pairs) - offset) for offset in (1, 0))
        for section in values:
            assert {key: below[section][key] for key in values[section]} == values[section]
            assert {key: at_it[section][key] for key in following[section]} == following[section]


def test_sizing_keeps_given_values() -> None:
    given_sizes = override(read_recipe("default"), {"model.size": 96, "model.dropout": 0.0})
    found = resolve_auto_sizes(given_sizes, 1000)
    assert (value_at(found, "model.size"), value_at(found, "model.dropout"), value_at(found, "model.layers")) == (
        96,
        0.0,
        3,
    )


def test_sizing_keeps_a_given_embedding_size() -> None:
    recipe = override(read_recipe("bahdanau2015"), {"model.size": "auto", "model.embedding": 100})
    assert (
        value_at(resolve_auto_sizes(recipe, 1000), "model.size"),
        value_at(resolve_auto_sizes(recipe, 1000), "model.embedding"),
    ) == (128, 100)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("default")])
def test_paper_recipes_have_nothing_to_size(name: str) -> None:
    assert resolve_auto_sizes(read_recipe(name), 10) == read_recipe(name)


def test_keys_of_later_versions_take_their_defaults() -> None:
    recipe = read_recipe("bahdanau2015")
    older = {**recipe, "training": {name: value for name, value in recipe["training"].items() if name != "keep_best"}}
    config = TASKS["translate"].make_config(older)
    assert config.training.keep_best == config.recipe["training"]["keep_best"] == 1
    assert config.recipe.keys() == recipe.keys()
    assert config.training.betas == tuple(config.recipe["training"]["betas"]), "a list in config.yaml"


def test_auto_reads_as_its_default_until_the_size_of_the_corpus_is_known() -> None:
    config = TASKS["translate"].make_config(read_recipe("default"))
    assert config.recipe["text"]["vocabulary"] == config.recipe["training"]["batch_tokens"] == "auto"
    assert (config.text.vocabulary, config.training.batch_tokens) == (10_000, 9_000)
    small = config.resolve_auto_sizes(1000)
    assert (small.text.vocabulary, small.recipe["training"]["batch_tokens"], small.model["size"]) == (2_000, 3_000, 128)


def test_overridden_config_is_parsed_again() -> None:
    config = TASKS["translate"].make_config(read_recipe("default"))
    assert config.training.seed == 1
    changed = config.override({"training.seed": 7, "data.train": ["a.tsv"]})
    assert (changed.training.seed, changed.data.train, config.training.seed) == (7, ("a.tsv",), 1)


def test_error_in_a_section_does_not_hide_the_others() -> None:
    config = TASKS["translate"].make_config(read_recipe("default")).override({"training.keep": 0})
    assert config.data.max_length > 0
    with pytest.raises(UserError, match="training: keep must be at least 1, not 0"):
        _ = config.training
