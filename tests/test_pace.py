"""What those are told who wait for a training: often enough, and how long it still takes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from support.training import TINY, corpus_files

from regard.training import loop, train
from regard.training.pace import Pace, spoken


class Ticking:
    """A clock that goes so many seconds on whenever somebody looks at it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


def told(
    corpus: Path, out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, seconds: float
) -> list[str]:
    """The lines of a training whose clock goes so fast, and whose lines by count are far apart."""
    monkeypatch.setattr(loop, "Pace", lambda: Pace(Ticking(seconds)))
    capsys.readouterr()
    train(
        "bahdanau2015",
        corpus_files(corpus, "train"),
        out,
        dev=corpus_files(corpus, "dev"),
        **{**TINY, "training.log_every": 20},
    )
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ") and "lr" in line]


def test_a_slow_training_says_something_every_half_minute(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = told(corpus, tmp_path / "slow", capsys, monkeypatch, 10.0)
    quick = told(corpus, tmp_path / "quick", capsys, monkeypatch, 0.001)
    assert [line.split()[1] for line in quick] == ["20/24"]
    assert quick[0].endswith("  less than a minute left")
    steps = [int(line.split()[1].split("/")[0]) for line in slow]
    assert steps[0] == 3, "looked at once at the beginning and after each update"
    assert 20 in steps
    assert max(after - before for before, after in pairwise(steps)) <= 3
    assert slow[0].endswith("  about 5 min left"), "3 updates in 40 seconds, 21 to come"
    same = [(tmp_path / name / "metrics.jsonl").read_text(encoding="utf-8").count("\n") for name in ("slow", "quick")]
    assert same[0] == same[1], "what is kept does not depend on the clock"


def test_what_is_left_is_estimated_from_what_this_process_did() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    pace.begin(100)
    assert pace.left(100, 200) == ""
    now[0] = 29.9
    assert not pace.due()
    now[0] = 30.0
    assert pace.due()
    assert pace.left(110, 200) == "  about 4 min left"
    assert not pace.due()
    assert pace.left(110, None) == ""
    assert pace.left(110, 105) == "  less than a minute left"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(29, "less than a minute"), (61, "about 1 min"), (5900, "about 98 min"), (6100, "about 2 h")],
)
def test_times_are_said_as_exactly_as_they_are_known(seconds: float, said: str) -> None:
    assert spoken(seconds) == said
