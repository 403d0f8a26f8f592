"""Compatibility: a run written by the first release loads, translates and resumes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.training import copy_run

from regard.errors import UserError
from regard.runs import Run, checkpoint
from regard.training import train
from regard.translate import load

HERE = Path(__file__).parent.parent / "first-release"
FIRST = Run(HERE / "run")


@pytest.fixture
def writable_run(tmp_path: Path) -> Run:
    return copy_run(FIRST, tmp_path / "run")


def read_expected() -> dict[str, Any]:
    return dict(json.loads((HERE / "expected.json").read_text(encoding="utf-8")))


def split_files(name: str) -> list[Path]:
    return [HERE / f"{name}.en", HERE / f"{name}.de"]


def test_first_release_run_gives_the_same_translations() -> None:
    wanted = read_expected()["translations"]
    found = load(FIRST.folder, device="cpu").translate([one["source"] for one in wanted], beam=3)
    assert [made.text for made in found] == [one["text"] for one in wanted]
    assert [made.score for made in found] == pytest.approx([one["score"] for one in wanted], abs=1e-4)
    assert any(made.text for made in found)


def test_first_release_state_and_metrics_are_read() -> None:
    state = FIRST.read_newest_state()
    assert state["format"] == 1
    assert FIRST.list_steps() == [state["step"]]
    assert FIRST.find_best_step() == state["best"]["step"]
    assert [row["step"] for row in FIRST.read_metrics() if row["kind"] == "dev"] == [state["step"]]


def test_first_release_run_resumes_to_the_expected_loss(writable_run: Run) -> None:
    wanted = read_expected()
    more = {
        "training.steps": wanted["steps"],
        "training.validate_every": wanted["steps"] - writable_run.find_newest_step(),
    }
    train(None, split_files("train"), writable_run.folder, dev=split_files("dev"), resume=True, **more)
    last = [row for row in writable_run.read_metrics() if row["kind"] == "dev"][-1]
    assert last["step"] == wanted["steps"]
    assert last["loss"] == pytest.approx(wanted["dev_loss"], abs=1e-4)
    assert (
        checkpoint.read_state(writable_run.checkpoint_folder(writable_run.find_newest_step()))["format"]
        == checkpoint.CHECKPOINT_FORMAT
    )


def test_checkpoint_of_a_later_format_is_refused(writable_run: Run) -> None:
    path = writable_run.checkpoint_folder(writable_run.find_newest_step()) / checkpoint.STATE_FILE
    later = {**json.loads(path.read_text(encoding="utf-8")), "format": checkpoint.CHECKPOINT_FORMAT + 1}
    path.write_text(json.dumps(later), encoding="utf-8")
    message = re.escape(f"has format {checkpoint.CHECKPOINT_FORMAT + 1}; this version of regard reads format")
    for use in (
        lambda: load(writable_run.folder),
        lambda: writable_run.recover_newest_checkpoint(lambda _: None),
        writable_run.read_newest_state,
        writable_run.find_best_step,
    ):
        with pytest.raises(UserError, match=message) as caught:
            use()
        assert "\n" not in str(caught.value)
    assert writable_run.list_steps() == FIRST.list_steps(), "it is not moved aside as damaged"


def test_first_release_config_without_newer_keys_is_a_recipe(tmp_path: Path) -> None:
    written = FIRST.read_config()
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
    made = train(old, split_files("train"), tmp_path / "new", dev=split_files("dev"), **few)
    assert made.find_newest_step() == 2
    assert made.read_config()["training"]["keep_best"] == 2
    assert made.read_config()["training"]["init_from"] is None
