"""A run that the first release wrote is read, used and trained on by this one."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

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
