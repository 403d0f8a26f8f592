"""Live view of a training on a terminal: what it shows, in every width and encoding, and what it leaves behind."""

from __future__ import annotations

import io
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from rich.console import Console
from support.training import TINY, corpus_files, format_overrides, train_tiny

from regard.console import is_terminal
from regard.training import train
from regard.training.live_view import LiveView, format_sparkline
from regard.training.metrics import MetricsWriter

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def read_terminal(terminal: int) -> str:
    """Return all that is written to a pseudo-terminal, until the other side is closed."""
    output = b""
    with suppress(OSError):  # Linux reports the closed side as an error
        while block := os.read(terminal, 1 << 16):
            output += block
    return output.decode()


@contextmanager
def use_terminal_as_stderr(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Make standard error a terminal; on exit the list holds what was written to it."""
    output: list[str] = []
    ours, theirs = os.openpty()
    reader = Thread(target=lambda: output.append(read_terminal(ours)))
    reader.start()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        yield output
        monkeypatch.undo()
    reader.join()
    os.close(ours)


def make_view() -> LiveView:
    view = LiveView(by_loss=False)
    for step in range(1, 201):
        metrics = {"loss": 8.0 - step / 50, "tokens_per_second": 1234.0}
        view.add_row({"kind": "train", "step": step, **metrics})
        view.show_update(step, 400, metrics, "at most about 5 min left", step / 400)
        view.add_row({"kind": "dev", "step": step, "loss": 2.0, "bleu": 100.0 - abs(150 - step), "measure": "bleu"})
    return view


def render(view: LiveView, width: int, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=file, width=width, force_terminal=True, no_color=True).print(view)
    file.flush()
    text = file.buffer.getvalue().decode(encoding)
    return re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()


def test_sparkline_shows_means_without_nan_and_inf() -> None:
    assert format_sparkline([0.0, math.nan, 7.0, math.inf, 3.0], 10) == "▁█▄"
    assert format_sparkline([0.0, 0.0, 1.0, 1.0], 2) == "▁█"
    assert format_sparkline([2.0, 2.0], 5) == "▁▁"
    assert format_sparkline([math.nan], 5) == format_sparkline([], 5) == ""


def test_view_shows_loss_score_best_and_the_time_left() -> None:
    progress, loss, score = render(make_view(), 100)
    assert progress.startswith("training ")
    assert "50%" in progress
    assert progress.rstrip().endswith("at most about 5 min left")
    assert re.fullmatch(r"loss +4\.00 +█[▁-█]+▁ +step 200 of 400, 1,234 tokens/s *", loss)
    assert re.fullmatch(r"BLEU +50\.00 +▁[▁-█]+ +best 100\.00 at step 150 *", score)


def test_curve_of_the_loss_has_equal_distances_after_a_resume() -> None:
    view = LiveView(by_loss=False)
    for step, loss in ((50, 8.0), (100, 4.0)):
        view.add_row({"kind": "train", "step": step, "loss": loss})
    for step in range(101, 140):
        view.show_update(step, None, {"loss": 1.0, "tokens_per_second": 1.0}, "", 0.0)
    assert re.fullmatch(r"loss +1\.00 +█▄▁ +step 139, 1 tokens/s *", render(view, 100)[1])


def test_best_validation_by_loss_is_the_lowest() -> None:
    view = LiveView(by_loss=True)
    for step, loss in ((10, 3.0), (20, 2.0), (30, math.nan), (40, 2.5)):
        view.add_row({"kind": "dev", "step": step, "loss": loss, "bleu": 1.0, "measure": "bleu"})
    line = render(view, 100)[-1]
    assert line.startswith("dev loss  2.50 ")
    assert line.rstrip().endswith("best 2.00 at step 20")


@pytest.mark.parametrize("width", [30, 45, 80, 200])
def test_view_fits_into_every_width(width: int) -> None:
    lines = render(make_view(), width)
    assert [line.split()[0] for line in lines] == ["training", "loss", "BLEU"]
    assert max(map(len, lines)) <= width


def test_view_is_ascii_where_the_terminal_is() -> None:
    lines = render(make_view(), 80, "ascii")
    assert [line.split()[0] for line in lines] == ["training", "loss", "BLEU"]
    assert "#" in lines[1]


def test_training_on_a_terminal_shows_the_view_instead_of_lines(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with use_terminal_as_stderr(monkeypatch) as output:
        assert is_terminal()
        train_tiny("bahdanau2015", corpus, tmp_path / "run")
    (text,) = output
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR) > 0
    assert "BLEU" in text
    assert "finished after" in text
    assert "dev loss" not in text
    assert "norm" not in text


def test_view_of_a_resumed_run_has_the_curves_from_before(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_tiny("bahdanau2015", corpus, tmp_path / "run")
    best = max(row["bleu"] for row in run.read_metrics() if row["kind"] == "dev")
    with use_terminal_as_stderr(monkeypatch) as output:
        longer: dict[str, Any] = {"training.steps": 25}
        train(None, None, run.folder, resume=True, **longer)
    assert f"best {best:.{2 if best >= 1 else 4}f}" in output[0]


def test_damaged_row_does_not_end_a_resumed_run_on_other_ranks(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_tiny("bahdanau2015", corpus, tmp_path / "run")
    with run.metrics_path.open("a", encoding="utf-8") as file:
        file.write("no JSON\n")
    monkeypatch.setattr(MetricsWriter, "open_after", lambda *steps: None)  # rank 0 alone opens and repairs the file
    longer: dict[str, Any] = {"training.steps": 25}
    train(None, None, run.folder, resume=True, **longer)
    assert max(run.list_steps()) == 25


@pytest.mark.parametrize(("variable", "value"), [("TERM", "dumb"), ("RANK", "1")])
def test_no_view_without_cursor_control_or_on_other_ranks(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with use_terminal_as_stderr(monkeypatch):
        assert is_terminal()
        monkeypatch.setenv(variable, value)
        assert not is_terminal()


@pytest.mark.slow
def test_interrupt_restores_the_terminal(corpus: Path, tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    keys = format_overrides({**TINY, "training.steps": 100_000})
    arguments = [*corpus_files(corpus, "train"), "--recipe", "bahdanau2015", "--out", tmp_path / "run", *keys]
    with subprocess.Popen(
        [sys.executable, "-m", "regard", "train", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
        start_new_session=True,
    ) as process:
        os.close(theirs)
        output = b""
        while b"BLEU" not in output.partition(b"loss ")[2]:
            output += os.read(ours, 1 << 16)
        process.send_signal(signal.SIGINT)
        text = output.decode(errors="replace") + read_terminal(ours)
    os.close(ours)
    assert process.returncode == 130
    assert "resume with: regard train --resume" in text
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR) > 0
