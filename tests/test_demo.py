"""`regard demo`, shortened: the files that it writes, what it prints, and the commands that it suggests."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from support.combinations import slow_after
from support.commands import Command
from support.corpora import translation_recipes
from support.training import TINY

from regard.demo import PredictionDemo, format_next_steps, run_demo
from regard.errors import UserError
from regard.models import build
from regard.plot.attention_overlay import WeightedWords
from regard.recipes.recipe import override, read_recipe, resolve_auto_sizes
from regard.runs import Run
from regard.synthetic.corpora import CORPUS_WORDS, SyntheticCorpus
from regard.tasks import TASKS, get_task
from regard.tasks.base import DevExample, Prediction

SHORT: dict[str, Any] = {key: value for key, value in TINY.items() if key.startswith("training.")} | {"model.size": 16}


def run_suggested(printed: str, regard: Command) -> dict[str, str]:
    """Run the commands behind `Try next:`, except demos and servers, and return their output by sub-command."""
    output = {}
    for line in printed.split("Try next:\n")[1].splitlines():
        before, _, command = line.rpartition(" | ")
        program, *arguments = shlex.split(command)
        assert Path(program).name == "regard"
        if arguments[0] not in ("demo", "serve"):
            done = regard(*arguments, input=" ".join(shlex.split(before)[1:]) + "\n" if before else None)
            assert done.returncode == 0, done.stderr
            output[arguments[0]] = done.stdout
    return output


@pytest.fixture(autouse=True)
def small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.tasks.translation.DEMO_PAIRS", 200)


def select_overrides(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides with which the demo of translation trains a recipe."""
    return SyntheticCorpus((), (), (), **CORPUS_WORDS["translation"]).select_overrides(dict(recipe))


def test_demo_writes_results_report_and_heat_map(tmp_path: Path, regard: Command) -> None:
    out = tmp_path / "my runs" / "demo"
    demo = run_demo("bahdanau2015", out, **SHORT)
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert results == demo.results
    assert {"recipe", "bleu", "aer", "seconds", "signature"} <= set(results)
    assert results["recipe"] == "bahdanau2015"
    assert 0 <= results["bleu"] <= 100
    assert 0 <= results["aer"] <= 1
    assert (out / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "report.html").read_text(encoding="utf-8").count("<section>") == 5
    said = demo.text
    assert f"BLEU      {results['bleu']:.1f}  (nrefs:1|case:mixed|eff:no|tok:13a" in said
    assert f"AER       {results['aer']:.3f}" in said
    assert str(out / "attention.png") in said
    assert str(out / "report.html") in said
    assert said.count("translation  ") == 5
    assert said.count("└──") == 5
    output = run_suggested(said, regard)
    assert set(output) == {"plot", "translate"}
    assert " ||| " in output["translate"]
    assert [path.name for path in tmp_path.iterdir()] == ["my runs"]  # nothing is left in the current folder
    assert (out / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_demo_of_a_language_without_spaces_aligns_its_words(tmp_path: Path, regard: Command) -> None:
    out = tmp_path / "my demo"
    demo = run_demo("bahdanau2015", out, "en-ja", **SHORT)
    assert " " not in (out / "corpus" / "train.ja").read_text(encoding="utf-8")
    assert f"chrF      {demo.results['chrf']:.1f}\nAER       {demo.results['aer']:.3f}" in demo.text
    output = run_suggested(demo.text, regard)
    assert set(output) == {"plot", "translate", "align"}
    assert len(output["align"].splitlines()) == demo.results["test_pairs"]
    with pytest.raises(UserError, match="already holds a run into the language ja"):
        run_demo("bahdanau2015", out, **SHORT)


def test_languages_of_a_demo_are_for_translation_alone(regard: Command) -> None:
    done = regard("demo", "--task", "classify", "--pair", "en-ja")
    assert done.returncode == 2
    assert "--pair is for translation" in done.stderr


@pytest.mark.slow
def test_demo_of_a_language_without_spaces_aligns_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.tasks.translation.DEMO_PAIRS", 20_000)
    results = run_demo("vaswani2017-base", tmp_path / "demo", "en-ja").results
    assert results["aer"] <= 0.15
    assert results["chrf"] >= 85


@pytest.mark.parametrize("task", slow_after(1, ["tag", "classify", "read", "caption", "regress"]))
def test_demo_of_a_task_suggests_commands_that_work(
    tmp_path: Path, task: str, regard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"training.steps": 4, "training.validate_every": 4, "training.checkpoint_every": 4}
    usual = SyntheticCorpus.select_overrides
    monkeypatch.setattr(SyntheticCorpus, "select_overrides", lambda corpus, recipe: {**usual(corpus, recipe), **short})
    demo = run_demo(TASKS[task].demo_recipe, tmp_path / "my demo")
    output = run_suggested(demo.text, regard)
    assert set(output) == {"evaluate", "predict"}
    assert all(output.values())


def test_demo_explains_weights_and_omits_words_without_any(tmp_path: Path) -> None:
    class Predicted:
        def to_text(self) -> str:
            return "liked"

        def make_attention_lines(self) -> list[WeightedWords]:
            lines = [
                WeightedWords("1", ["we", "ate", "."], [0.0, 0.004, 0.996], 0.98),
                WeightedWords("2", ["late"], [0.001], 0.02),
            ]
            return [*lines, WeightedWords("3", [], [])]

    def print_demo(recipe: str) -> str:
        sample = (DevExample("We ate.", "liked"), cast(Prediction, Predicted()))
        demo = PredictionDemo.__new__(PredictionDemo)  # without a trained model
        demo.run, demo.task = Run(tmp_path), get_task(read_recipe(recipe))
        demo.samples, demo.test_files = [sample], [tmp_path / "test.tsv"]
        return demo.format({})

    said = print_demo("yang2016")
    assert "  1 (0.98): . 1.00\n\n" in said
    assert "0.00" not in said
    assert "late" not in said
    assert "docs/classify.md" in said
    assert "docs/classify.md" not in print_demo("cui2017")


@pytest.mark.slow
def test_finished_demo_is_not_trained_again_and_keeps_its_recipe(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    first = run_demo("bahdanau2015", out, **SHORT)
    newest = Run(out).checkpoint_folder(Run(out).find_newest_step()) / "model.safetensors"
    before = newest.stat().st_mtime_ns
    again = run_demo("bahdanau2015", out, **SHORT)
    assert newest.stat().st_mtime_ns == before
    assert again.results["bleu"] == first.results["bleu"]
    with pytest.raises(UserError, match="already holds a run of bahdanau2015"):
        run_demo("luong2015-global", out, **SHORT)


@pytest.mark.parametrize("name", translation_recipes())
def test_every_translation_recipe_has_a_small_demo(name: str) -> None:
    recipe = override(resolve_auto_sizes(read_recipe(name)), select_overrides(read_recipe(name)))
    model = build(recipe, 600, 1200)
    assert sum(parameter.numel() for parameter in model.parameters()) < 2_000_000
    assert recipe["training"]["steps"] <= 3000


def test_a_user_defined_model_kind_has_a_small_demo() -> None:
    recipe = read_recipe("luong2015-global")
    overrides = select_overrides({**recipe, "model": {**recipe["model"], "kind": "mine"}})
    assert overrides["model.size"] == 128
    assert overrides["training.steps"] == 2400


def test_suggested_commands_are_callable_without_an_activated_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environments = [tmp_path / name / "bin" for name in ("bare", "other", "my venv")]
    for folder in environments:
        folder.mkdir(parents=True)
    bare, other, own = (folder / "regard" for folder in environments)
    other.touch(0o755)
    own.touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(other.parent))
    monkeypatch.setattr("sys.executable", str(bare.with_name("python")))
    assert format_next_steps("echo {} | {regard} plot x").endswith(f"echo {{}} | {bare.parent}/python -m regard plot x")
    monkeypatch.setattr("sys.executable", str(own.with_name("python")))
    assert format_next_steps("{regard} plot x") == "Try next:\n  'my venv/bin/regard' plot x"
    monkeypatch.setenv("PATH", str(own.parent))
    assert format_next_steps("{regard} plot x") == "Try next:\n  regard plot x"


def test_serve_is_suggested_with_its_extra_where_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "pip install" not in format_next_steps("{regard} serve x")
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "regard.serve.server", raising=False)
    monkeypatch.delitem(sys.modules, "regard.serve.app", raising=False)
    assert format_next_steps("{regard} serve x").endswith("# first: pip install 'regard[serve]'")
    assert "pip install" not in format_next_steps("{regard} plot x")
