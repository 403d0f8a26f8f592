"""A run that the first release wrote is read, used and trained on by this one."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from regard.errors import UserError
from regard.runs import Run, checkpoint
from regard.training import train
from regard.translate import load

HERE = Path(__file__).parent / "first-release"
FIRST = Run(HERE / "run")


@pytest.fixture
def copy(tmp_path: Path) -> Run:
    shutil.copytree(FIRST.folder, tmp_path / "run")
    return Run(tmp_path / "run")


def expected() -> dict[str, Any]:
    return dict(json.loads((HERE / "expected.json").read_text(encoding="utf-8")))


def split(name: str) -> list[Path]:
    return [HERE / f"{name}.en", HERE / f"{name}.de"]


def test_it_translates_as_it_did() -> None:
    wanted = expected()["translations"]
    found = load(FIRST.folder, device="cpu").translate([one["source"] for one in wanted], beam=3)
    assert [made.text for made in found] == [one["text"] for one in wanted]
    assert [made.score for made in found] == pytest.approx([one["score"] for one in wanted], abs=1e-4)
    assert any(made.text for made in found)


def test_its_state_is_read() -> None:
    state = FIRST.state()
    assert state["format"] == 1
    assert FIRST.steps() == [state["step"]]
    assert FIRST.best() == state["best"]["step"]
    assert [row["step"] for row in FIRST.metrics() if row["kind"] == "dev"] == [state["step"]]


def test_it_goes_on_as_it_would_have(copy: Run) -> None:
    wanted = expected()
    more = {"training.steps": wanted["steps"], "training.validate_every": wanted["steps"] - copy.newest()}
    train(None, split("train"), copy.folder, dev=split("dev"), resume=True, **more)
    last = [row for row in copy.metrics() if row["kind"] == "dev"][-1]
    assert last["step"] == wanted["steps"]
    assert last["loss"] == pytest.approx(wanted["dev_loss"], abs=1e-4)
    assert checkpoint.read_state(copy.checkpoint_folder(copy.newest()))["format"] == checkpoint.FORMAT


def test_a_later_format_is_refused_with_a_sentence(copy: Run) -> None:
    path = copy.checkpoint_folder(copy.newest()) / checkpoint.STATE
    later = {**json.loads(path.read_text(encoding="utf-8")), "format": checkpoint.FORMAT + 1}
    path.write_text(json.dumps(later), encoding="utf-8")
    said = re.escape(f"has format {checkpoint.FORMAT + 1}; this version of regard reads format")
    for use in (lambda: load(copy.folder), lambda: copy.recover(lambda _: None), copy.state):
        with pytest.raises(UserError, match=said) as caught:
            use()
        assert "\n" not in str(caught.value)
    assert copy.steps() == FIRST.steps(), "and it is left where it was"


def test_its_config_is_a_recipe_even_without_keys_that_came_later(tmp_path: Path) -> None:
    written = FIRST.config()
    for section, key in (
        ("training", "init_from"),
        ("training", "keep_best"),
        ("training", "seed"),
        ("text", "dropout"),
    ):
        written[section].pop(key, None)
    old = tmp_path / "config.yaml"
    old.write_text(yaml.safe_dump(written), encoding="utf-8")
    few: dict[str, Any] = {"training.steps": 2, "training.keep_best": 2, "training.tensorboard": False}
    made = train(old, split("train"), tmp_path / "new", dev=split("dev"), **few)
    assert made.newest() == 2
    assert made.config()["training"]["keep_best"] == 2
    assert made.config()["training"]["init_from"] is None
