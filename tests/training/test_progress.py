"""Progress lines of training: how often they are printed, and the estimated remaining time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from support.training import train_tiny

from regard.training import trainer
from regard.training.metrics import EtaEstimator, format_duration


class TickingClock:
    """A clock that advances by a fixed number of seconds whenever it is read."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


def train_with_clock(
    corpus: Path, out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, seconds: float
) -> list[str]:
    """Return the progress lines of a training whose clock advances by `seconds` per update."""
    monkeypatch.setattr(trainer, "EtaEstimator", lambda clock: EtaEstimator(TickingClock(seconds)))
    capsys.readouterr()
    overrides = {"training.log_every": 20, "training.batch_tokens": 60, "model.size": 8, "training.validate_pairs": 1}
    train_tiny("bahdanau2015", corpus, out, **overrides)
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ") and "lr" in line]


def test_slow_training_prints_progress_every_half_minute(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = train_with_clock(corpus, tmp_path / "slow", capsys, monkeypatch, 10.0)
    quick = train_with_clock(corpus, tmp_path / "quick", capsys, monkeypatch, 0.001)
    assert [line.split()[1] for line in quick] == ["20/24"]
    assert quick[0].endswith("  less than a minute left")
    steps = [int(line.split()[1].split("/")[0]) for line in slow]
    assert steps[0] == 3, "the clock is read at the beginning and after each update"
    assert 20 in steps
    assert max(after - before for before, after in pairwise(steps)) <= 3
    assert slow[0].endswith("  at most about 5 min left"), "3 updates took 40 seconds, 21 remain"
    lines = [(tmp_path / name / "metrics.jsonl").read_text(encoding="utf-8").count("\n") for name in ("slow", "quick")]
    assert lines[0] == lines[1], "the metrics file does not depend on the clock"


def test_remaining_time_is_estimated_from_updates_of_this_process() -> None:
    now = [0.0]
    pace = EtaEstimator(lambda: now[0])
    pace.start(100)
    assert pace.format_remaining_time(100, 200) == ""
    now[0] = 29.9
    assert not pace.is_log_due()
    now[0] = 30.0
    assert pace.is_log_due()
    assert pace.format_remaining_time(110, 200) == "about 4 min left"
    assert not pace.is_log_due()
    assert pace.format_remaining_time(110, None) == ""
    now[0] = 3000.0
    assert pace.format_remaining_time(110, 111) == "about 5 min left"
    assert pace.format_remaining_time(110, 110) == pace.format_remaining_time(110, 105) == "less than a minute left"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(29, "less than a minute"), (61, "about 1 min"), (5900, "about 98 min"), (6100, "about 2 h")],
)
def test_durations_are_rounded_for_display(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
