"""`regard demo`, shortened: the files that it writes and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.corpora import translation_recipes
from support.training import TINY

from regard.demo import run_demo, small, summary
from regard.demo.next_steps import format_next_steps
from regard.errors import UserError
from regard.models import build
from regard.recipes import override, read, sized
from regard.runs import Run

SHORT: dict[str, Any] = {key: value for key, value in TINY.items() if key.startswith("training.")} | {"model.size": 16}


def test_demo_writes_results_report_and_heat_map(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    demo = run_demo("bahdanau2015", out, 200, **SHORT)
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert results == demo.results
    assert {"recipe", "bleu", "aer", "seconds", "signature"} <= set(results)
    assert results["recipe"] == "bahdanau2015"
    assert 0 <= results["bleu"] <= 100
    assert 0 <= results["aer"] <= 1
    assert demo.picture.read_bytes().startswith(b"\x89PNG")
    assert demo.report.read_text(encoding="utf-8").count("<section>") == 5
    said = summary(demo, out)
    assert f"BLEU      {results['bleu']:.1f}  (nrefs:1|case:mixed|eff:no|tok:13a" in said
    assert f"AER       {results['aer']:.3f}" in said
    assert str(demo.picture) in said
    assert str(demo.report) in said
    assert said.count("translation  ") == 5
    assert said.count("└──") == 5
    commands = said.split("Try next:\n")[1].splitlines()
    assert len(commands) == 4
    assert all("regard " in command for command in commands)


def test_finished_demo_is_not_trained_again_and_keeps_its_recipe(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    first = run_demo("bahdanau2015", out, 200, **SHORT)
    newest = Run(out).checkpoint_folder(Run(out).newest()) / "model.safetensors"
    before = newest.stat().st_mtime_ns
    again = run_demo("bahdanau2015", out, 200, **SHORT)
    assert newest.stat().st_mtime_ns == before
    assert again.results["bleu"] == first.results["bleu"]
    with pytest.raises(UserError, match="already holds a run of bahdanau2015"):
        run_demo("luong2015-global", out, 200, **SHORT)


@pytest.mark.parametrize("name", translation_recipes())
def test_every_translation_recipe_has_a_small_demo(name: str) -> None:
    recipe = override(sized(read(name)), small(read(name)))
    model = build(recipe, 600, 1200)
    assert sum(parameter.numel() for parameter in model.parameters()) < 2_000_000
    assert recipe["training"]["steps"] <= 3000


def test_suggested_commands_are_callable_without_an_activated_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "venv" / "bin" / "regard"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("sys.executable", str(script.with_name("python")))
    assert format_next_steps("echo {} | {regard} align x") == "Try next:\n  echo {} | python -m regard align x"
    script.parent.mkdir(parents=True)
    script.touch(0o755)
    assert format_next_steps("{regard} plot x") == "Try next:\n  venv/bin/regard plot x"
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/regard")
    assert format_next_steps("{regard} plot x") == "Try next:\n  regard plot x"


def test_serve_is_suggested_with_its_extra_where_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "pip install" not in format_next_steps("{regard} serve x")
    monkeypatch.setattr("regard.demo.next_steps.find_spec", lambda name: None)
    assert format_next_steps("{regard} serve x").endswith("# first: pip install 'regard[serve]'")
    assert "pip install" not in format_next_steps("{regard} plot x")
